"""How fast episodes are played, side by side in one run: same model, tasks, seeds and threads.

    python tests/bench/rollouts.py [--model FOLDER] [--episodes 512] [--batch 128]

Compared, on the embedded suite: the local policy; one `model.generate` call per turn and episode;
and the floor of the arithmetic: the model's floating-point operations over the matrix product rate
that this machine reaches on the same threads.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from trace_bench.core.protocols import Policy

SHIPPED = Path(__file__).parents[2] / "trace_bench" / "tiny" / "model"


class GeneratePolicy(Policy):
    """The loop that people write first: one `model.generate` call per turn and episode."""

    capacity, repeatable = 1, True

    def __init__(self, path: Path) -> None:
        from trace_bench.policies.chat import Chat
        from trace_bench.policies.loading import load_model

        self.model, tokenizer = load_model(path)
        self.chat = Chat(tokenizer)
        self.ids: dict[int, list[int]] = {}
        self.requests: list[Any] = []

    def load(self, agent: Any) -> None: ...

    def submit(self, requests: Sequence[Any]) -> None:
        self.requests += requests

    def collect(self) -> list[Any]:
        import torch

        from trace_bench.core.protocols import TurnReply
        from trace_bench.core.types import Turn

        request = self.requests.pop(0)
        before = self.ids.get(request.episode)
        if before is None:
            before, prompt = [], self.chat.first(request.messages, request.tools)
        else:
            prompt = self.chat.following(request.messages, before[-1] == self.chat.stop)
        torch.manual_seed(request.seed % 2**31)
        ids = torch.tensor([[*before, *prompt]])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=request.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=request.max_tokens,
            eos_token_id=self.chat.stop,
            pad_token_id=self.chat.stop,
        )[0].tolist()
        self.ids[request.episode] = out
        sampled = tuple(out[ids.shape[1] :])
        reply = self.chat.parse(sampled, 0, request.tools)
        turn = Turn(request.messages, reply.message, prompt, sampled, malformed=reply.malformed)
        return [TurnReply(request.episode, turn)]

    def release(self, episode: int) -> None:
        self.ids.pop(episode, None)

    def close(self) -> None: ...


def timed(policy: Any, suite: Any, tasks: Sequence[Any], first: int, **options: Any) -> Any:
    """Plays `tasks`; (seconds, trajectories)."""
    from playing import play

    from trace_bench.core.types import AgentSpec

    start = time.perf_counter()
    seeds = range(first, first + len(tasks))
    played = play(policy, suite, AgentSpec("bench"), tasks, seeds, **options)
    seconds = time.perf_counter() - start
    failed = [t.failure for t in played if t.failure]
    if failed:
        raise SystemExit(f"{len(failed)} episodes failed, the first with {failed[0]}")
    return seconds, played


def matrix_rate() -> float:
    """Floating-point operations a second of a 512 x 512 x 512 product, the best of five."""
    import torch

    a, b = torch.randn(512, 512), torch.randn(512, 512)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(20):
            torch.mm(a, b)
        best = min(best, (time.perf_counter() - start) / 20)
    return 2 * 512**3 / best


def sizes(path: Path) -> tuple[int, int]:
    """(parameters in the layers' matrices, parameters in the output matrix)."""
    from trace_bench.policies.loading import load_model

    model, _ = load_model(path)
    head = model.get_output_embeddings().weight.numel()
    layers = sum(p.numel() for n, p in model.named_parameters() if ".layers." in n and p.ndim == 2)
    return layers, head


def bench_local(args: argparse.Namespace, path: Path, suite: Any, tasks: list[Any]) -> float:
    """Prints the local policy's speed and its share of the floor; episodes a second."""
    from trace_bench.policies.local import LocalPolicy

    policy = LocalPolicy(path, batch=args.batch, dtype=args.dtype)
    options = {"max_tokens": args.max_tokens}
    timed(policy, suite, tasks[: args.batch], 0, **options)
    engine = policy._engine
    before, forward, rows_of_logits = engine.computed, engine.backend.forward, [0]

    def counted(rows: Any) -> Any:
        rows_of_logits[0] += len(rows.slots)
        return forward(rows)

    engine.backend.forward = counted  # type: ignore[method-assign]
    runs = [timed(policy, suite, tasks, 1000, **options) for _ in range(args.repeat)]
    seconds, played = min(runs, key=lambda run: run[0])
    computed = (engine.computed - before) // args.repeat
    predicted = rows_of_logits[0] // args.repeat
    total = sum(t.tokens for t in played)
    sampled = sum(len(u.token_ids) for t in played for u in t.turns)
    turns = sum(len(t.turns) for t in played)
    layers, head = sizes(path)
    rate = matrix_rate()
    simple = 2 * (layers + head) * total / rate
    strict = (2 * layers * computed + 2 * head * predicted) / rate
    n = len(played)
    print(
        f"episodes: {n}, in groups of {args.group}; {turns / n:.1f} turns, {total / n:.0f} tokens, "
        f"{sampled / n:.0f} sampled, {computed / n:.0f} computed (common parts of a group once)"
    )
    print(
        f"local policy, batch {args.batch}: {n / seconds:.1f} episodes/s, "
        f"{sampled / seconds:,.0f} sampled tokens/s, {total / seconds:,.0f} tokens/s"
    )
    print(
        f"floor: {layers + head:,} parameters at {rate / 1e9:.0f} GFLOP/s: "
        f"2 x parameters x tokens takes {simple:.2f} s of {seconds:.2f} s, share "
        f"{simple / seconds:.0%}; only what was computed: share {strict / seconds:.0%}"
    )
    return n / seconds


def bench_generate(args: argparse.Namespace, path: Path, suite: Any, tasks: list[Any]) -> float:
    policy = GeneratePolicy(path)
    chosen = tasks[:: max(1, len(tasks) // args.slow)][: args.slow]
    timed(policy, suite, chosen[:1], 0, max_tokens=args.max_tokens)
    runs = [
        timed(policy, suite, chosen, 1000, max_tokens=args.max_tokens) for _ in range(args.repeat)
    ]
    seconds, played = min(runs, key=lambda run: run[0])
    tokens = sum(t.tokens for t in played) / len(played)
    print(
        f"model.generate per turn and episode: {len(played) / seconds:.2f} episodes/s "
        f"({len(played)} episodes of {tokens:.0f} tokens)"
    )
    return len(played) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--group", type=int, default=8, help="episodes of the same task")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--slow", type=int, default=24, help="episodes for model.generate")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    import torch
    from sandboxes import in_process as find

    torch.set_num_threads(args.threads)
    suite = find("toolsandbox", "embedded")
    tasks = list(suite.tasks("train_large"))[: -(-args.episodes // args.group)]
    chosen = [t for t in tasks for _ in range(args.group)][: args.episodes]
    print(f"{args.threads} thread(s), torch {torch.__version__}")
    ours = bench_local(args, args.model, suite, chosen)
    loop = bench_generate(args, args.model, suite, chosen)
    print(f"local policy / model.generate: {ours / loop:.1f} x")


if __name__ == "__main__":
    main()
