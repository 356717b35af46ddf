"""CPU milliseconds a turn of `policy=openai`, and of bare aiohttp for the same requests.

    python tests/bench/driver.py [--places 64 512 2048] [--turns 4000]

Conversations of tau2's size (a policy of 6 kB, 14 tools) go on for ten turns each, so many at once,
against a server of another process that answers at once, with the token ids and log-probabilities
of a turn of 60 tokens as vLLM gives them. Counted is the processor's time of this process alone,
all its threads together, since the policy shares it with the environments. The bare client sends
the same bodies and reads the answers as JSON. Three times in turn; the best of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
SAMPLED, LENGTH = 60, 10
SERVER = """
import asyncio, json

class Answers(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.left = transport, b""

    def data_received(self, data):
        self.left += data
        while (end := self.left.find(b"\\r\\n\\r\\n")) >= 0:
            head = self.left[:end].lower()
            size = int(head.partition(b"content-length:")[2].split(b"\\r\\n")[0] or 0)
            if len(self.left) < end + 4 + size:
                return
            body, self.left = self.left[end + 4 : end + 4 + size], self.left[end + 4 + size :]
            self.transport.write(answer(head.split()[1], body))

def answer(path, body):
    if path.endswith(b"/models"):
        said = json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}).encode()
    else:
        said = TURNS[body.count(b'"role"')]
    head = "HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: "
    return f"{head}{len(said)}\\r\\n\\r\\n".encode() + said

def turn(messages):
    tokens = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}] * SAMPLED
    return json.dumps({
        "id": "x", "object": "chat.completion", "model": "m",
        "prompt_token_ids": [7] * (3000 + 100 * messages),
        "usage": {"prompt_tokens": 3000, "completion_tokens": SAMPLED, "total_tokens": 3060},
        "choices": [{
            "index": 0, "finish_reason": "stop", "token_ids": [7] * SAMPLED,
            "message": {"role": "assistant", "content": "Let me look that up for you. " * 6},
            "logprobs": {"content": tokens},
        }],
    }).encode()

TURNS = {n: turn(n) for n in range(64)}

async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answers, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def opening() -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    from trace_bench.core.chat import make_tool

    rules = "The agent looks an order up before it changes anything. " * 110
    about = "Changes an order that is pending, once the user has said yes. " * 3
    takes: dict[str, Any] = {"order": "string", "items": {"type": "array"}, "reason": "string"}
    tools = tuple(make_tool(f"change_order_{i}", about, **takes) for i in range(14))
    return ({"role": "system", "content": rules}, {"role": "user", "content": "Hello."}), tools


def ours(url: str, places: int, turns: int) -> int:
    """The turns that were played."""
    from trace_bench.core.protocols import TurnRequest
    from trace_bench.llm.client import Endpoint
    from trace_bench.policies.openai import OpenAIPolicy

    policy = OpenAIPolicy(Endpoint((url,), concurrency=places), "m", capacity=places, extra=None)
    first, tools = opening()
    next_ = ({"role": "user", "content": "The order is 4711, and I want another colour. " * 5},)
    done: dict[int, int] = {}
    made = begun = 0

    def request(episode: int, messages: Any) -> TurnRequest:
        return TurnRequest(episode, messages, tools, None, episode, 1.0, 96)

    def start(count: int) -> None:
        nonlocal begun
        policy.submit([request(begun + n, first) for n in range(count)])
        done.update((begun + n, 0) for n in range(count))
        begun += count

    start(places)
    while made < turns:
        for reply in policy.collect():
            assert reply.turn is not None and len(reply.turn.logprobs) == SAMPLED, reply.error
            made, n = made + 1, reply.episode
            done[n] += 1
            if done[n] < LENGTH:
                policy.submit([request(n, next_)])
            else:
                policy.release(n)
                del done[n]
                start(1)
    policy.close()
    return made


async def bare(url: str, places: int, turns: int) -> int:
    import aiohttp

    first, tools = opening()
    messages = [*first, *[{"role": "user", "content": "colour " * 33}] * LENGTH]
    body = {"model": "m", "tools": tools, "messages": messages, "logprobs": True}
    left = turns

    async def one(session: aiohttp.ClientSession) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with session.post(f"{url}/chat/completions", json=body) as answer:
                json.loads(await answer.read())

    connector = aiohttp.TCPConnector(limit=places)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(one(session) for _ in range(places)))
    return turns


def spent(work: Any) -> float:
    """CPU milliseconds of a turn."""
    start = time.process_time()
    turns = work()
    return 1000 * (time.process_time() - start) / int(turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--turns", type=int, default=4000)
    given = parser.parse_args()
    code = SERVER.replace("SAMPLED", str(SAMPLED))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        try:
            for places in given.places:
                own = plain = float("inf")
                for _ in range(3):
                    own = min(own, spent(partial(ours, url, places, given.turns)))
                    asking = bare(url, places, given.turns)
                    plain = min(plain, spent(partial(asyncio.run, asking)))
                print(f"{places:>5} places: {own:.2f} ms a turn, bare aiohttp {plain:.2f} ms, "
                      f"{own / plain:.1f} times")  # fmt: skip
        finally:
            server.kill()


if __name__ == "__main__":
    main()
