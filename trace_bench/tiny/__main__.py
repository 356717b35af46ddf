"""`python -m trace_bench.tiny build [folder]`: make the tiny agent from nothing.

Draws the demonstrations, trains the tokenizer and the model, and writes both with a model card to
the folder (default: where the package looks for it). About half an hour on two CPU cores.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from trace_bench.errors import UserError
from trace_bench.store import write_json
from trace_bench.tiny import MODEL_FOLDER


def build(folder: Path) -> None:
    """The whole recipe; prints what it does."""
    from trace_bench.tiny.train import Recipe, encode, make_tokenizer, train
    from trace_bench.types import to_json

    recipe = Recipe()
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    print(f"tokenizer from demonstrations, into {folder}", flush=True)
    make_tokenizer(folder, recipe)
    print(f"{recipe.demonstrations} demonstrations as tokens", flush=True)
    corpus = encode(folder, recipe)
    agent = int(corpus.agent.sum())
    print(f"{len(corpus.ids):,} tokens, {agent:,} of them the agent's", flush=True)
    report = train(folder, corpus, recipe, lambda line: print(line, flush=True))
    report["seconds_in_all"] = round(time.monotonic() - begun, 1)
    write_json(folder / "training.json", {"recipe": to_json(recipe), "report": report})
    print(f"done in {report['seconds_in_all'] / 60:.1f} minutes: {folder}")


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] != "build" or len(arguments) > 2:
        print("usage: python -m trace_bench.tiny build [folder]", file=sys.stderr)
        return 2
    try:
        build(Path(arguments[1]) if len(arguments) == 2 else MODEL_FOLDER)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
