"""Tokens a second over HTTP and by the engine alone, on the same requests and threads.

    python tests/bench/serving.py [--requests 200] [--tokens 48] [--long]

Each request is a task's first turn of the embedded suite (system prompt, tools, first message) to
the shipped tiny agent, sampled for so many tokens at most; with --long for exactly so many, since
the tiny agent's turns are a dozen tokens and most work is then done for the prompts. Alone, a
policy of the same batch gets all of them at once. Over HTTP a client in another process sends all
of them at once. Both are measured three times in turn, and the ratio is that of the best; the
answers must be the same. Seconds of the processor are those of this process, with the server and
without the client: on a busy machine they say more than the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
BATCH = 64


def requests(count: int, tokens: int) -> list[dict[str, Any]]:
    from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite

    suite = EmbeddedSuite()
    tasks = suite.tasks("test")
    out = []
    for i in range(count):
        env = suite.make()
        step = env.reset(tasks[i % len(tasks)])
        body = {"messages": list(step.messages), "tools": list(step.tools), "seed": i}
        out.append({**body, "model": "agent", "temperature": 1.0, "max_tokens": tokens})
    return out


def alone(policy: Any, bodies: list[dict[str, Any]]) -> tuple[int, float, list[str]]:
    """(sampled tokens, seconds, texts)."""
    from trace_bench.core.protocols import TurnRequest

    start, left, tokens = time.perf_counter(), list(enumerate(bodies)), 0
    texts = [""] * len(bodies)
    live = 0
    while left or live:
        while left and live < policy.capacity:
            n, body = left.pop(0)
            messages, tools = tuple(body["messages"]), tuple(body["tools"])
            order = TurnRequest(n, messages, tools, None, body["seed"], 1.0, body["max_tokens"])
            policy.submit([order])
            live += 1
        for reply in policy.step():
            tokens += len(reply.turn.token_ids)
            texts[reply.episode] = reply.turn.reply["content"].strip()
            policy.release(reply.episode)
            live -= 1
    return tokens, time.perf_counter() - start, texts


def client(url: str) -> None:
    """In a process of its own: sends the requests on stdin, prints tokens, seconds and texts."""
    import httpx

    bodies = json.load(sys.stdin)

    async def send() -> None:
        limits = httpx.Limits(max_connections=len(bodies))
        async with httpx.AsyncClient(limits=limits, timeout=600) as http:
            start = time.perf_counter()
            answers = await asyncio.gather(*(http.post(url, json=b) for b in bodies))
            seconds = time.perf_counter() - start
        assert {a.status_code for a in answers} == {200}, "a request was lost"
        found = [a.json() for a in answers]
        tokens = sum(f["usage"]["completion_tokens"] for f in found)
        texts = [f["choices"][0]["message"]["content"] for f in found]
        print(json.dumps([tokens, seconds, texts]))

    asyncio.run(send())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--long", action="store_true", help="answers of exactly --tokens")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        client(given.client)
        return
    from servers.agent import local, serving

    from trace_bench.core.types import AgentSpec
    from trace_bench.policies.local import LocalPolicy
    from trace_bench.serve.request import ServeSettings
    from trace_bench.tiny import MODEL_FOLDER

    bodies = requests(given.requests, given.tokens)
    agent = AgentSpec(str(MODEL_FOLDER))
    policy = LocalPolicy(MODEL_FOLDER, batch=BATCH, threads=1)
    policy.load(agent)
    settings = ServeSettings(requests=max(256, given.requests))
    backend = local(MODEL_FOLDER, agent, BATCH, given.tokens)
    if given.long:
        for acting in (policy, backend.engine.policy):
            acting._engine.stop = acting.chat.stop = -1
    best: dict[str, list[float]] = {"alone": [0.0, 0.0], "over HTTP": [0.0, 0.0]}

    def keep(name: str, tokens: int, seconds: float, work: float) -> None:
        rates = (tokens / seconds, tokens / work)
        best[name] = [max(pair) for pair in zip(best[name], rates, strict=True)]

    with serving(backend, settings) as served:
        url = f"{served.url}/v1/chat/completions"
        command = [sys.executable, __file__, "--client", url]
        for _ in range(3):
            start = time.process_time()
            tokens, seconds, texts = alone(policy, bodies)
            keep("alone", tokens, seconds, time.process_time() - start)
            start = time.process_time()
            done = subprocess.run(
                command, input=json.dumps(bodies), capture_output=True, text=True, check=True
            )
            tokens, seconds, over_http = json.loads(done.stdout)
            keep("over HTTP", tokens, seconds, time.process_time() - start)
            differ = sum(a != b for a, b in zip(texts, over_http, strict=True))
            print(f"{tokens} tokens, {differ} of {len(texts)} answers differ", file=sys.stderr)
    for name, rates in best.items():
        shares = [rate / other for rate, other in zip(rates, best["alone"], strict=True)]
        print(
            f"{name:<10} {rates[0]:8.0f} tokens/s ({shares[0]:.2f}) "
            f"{rates[1]:8.0f} a second of the processor ({shares[1]:.2f})"
        )


if __name__ == "__main__":
    main()
