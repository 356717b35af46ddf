"""Building and measuring the tiny agent.

    python -m trace_bench.tiny build [folder]      from scratch: tokenizer, model, figures, card
    python -m trace_bench.tiny measure [folder]    prints the figures of the model card

Without a folder it is the one from which the package loads its model. Building takes about twenty
minutes on two CPU cores, measuring half a minute.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_json, write_json, write_text
from trace_bench.tiny import MODEL_FOLDER

COMMANDS = ("build", "measure")


def build(folder: Path) -> None:
    """Runs the whole recipe and prints its progress."""
    from trace_bench.core.types import to_json
    from trace_bench.tiny.train import Recipe, encode, make_tokenizer, train

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
    print(f"trained in {report['seconds_in_all'] / 60:.1f} minutes: {folder}")
    describe(folder)


def describe(folder: Path) -> None:
    """Measures the model and writes its card."""
    from trace_bench.tiny.card import card
    from trace_bench.tiny.measure import measure, show

    figures = measure(folder)
    print(show(figures))
    write_json(folder / "measured.json", figures)
    write_text(folder / "README.md", card(read_json(folder / "training.json"), figures))


def measured(folder: Path) -> None:
    """Prints the figures and writes nothing."""
    from trace_bench.tiny.measure import measure, show

    print(show(measure(folder)))


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS or len(arguments) > 2:
        given = " ".join(arguments) or "nothing"
        print(f"error: got {given}\n{__doc__}", file=sys.stderr)
        return 2
    folder = Path(arguments[1]) if len(arguments) == 2 else MODEL_FOLDER
    try:
        build(folder) if arguments[0] == "build" else measured(folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
