"""What the splits of the embedded suite share, and what the tiny agent's demonstrations share with
the test split.

    python tests/bench/overlap.py [--demonstrations N]

The wording of a whole dialogue (openers, clauses, closers) belongs to one split; the clauses that
it is made of do not. A clause is a template of one kind of request, such as the third way to ask
for a reminder.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from trace_bench.core.types import Task
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.tiny import demos, train

MODEL = Path(train.__file__).parent / "model"


def wordings(tasks: Iterable[Task]) -> set[str]:
    """Of whole dialogues."""
    return {task.data["wording"] for task in tasks}


def clauses(tasks: Iterable[Task]) -> set[str]:
    """The templates, by kind and number; without the frames, which have a slash."""
    return {part for text in wordings(tasks) for part in text.split() if "/" not in part}


def names(tasks: Iterable[Task], place: int) -> set[str]:
    """First (0) or last (-1) names of all contacts."""
    return {row["name"].split()[place] for t in tasks for row in t.data["start"]["CONTACT"]}


def openings(tasks: Iterable[Task]) -> set[str]:
    """What the user says first, as words without case and marks."""
    return {_words(task.data["user"]["opening"]) for task in tasks}


def repeated(count: int, of: set[str]) -> int:
    """How many of the first `count` demonstrations open with one of these openings."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(MODEL / "tokenizer.json")).get_vocab()
    pieces = demos.pieces_of(sorted(vocabulary))
    found = 0
    for seed in range(count):
        messages, _ = demos.general(seed, pieces)
        said = next(m["content"] for m in messages if m["role"] == "user")
        found += _words(said) in of
    return found


def _words(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demonstrations", type=int, default=train.TinyRecipe().demonstrations)
    given = parser.parse_args()
    suite = EmbeddedSuite()
    tasks = {split: suite.tasks(split) for split in suite.splits()}
    test = tasks["test"]
    for split in ("train", "train_large", "dev"):
        both = wordings(test) & wordings(tasks[split])
        shared = clauses(test) & clauses(tasks[split])
        print(
            f"test and {split}: {len(both)} wordings of dialogues in both, {len(shared)} of test's "
            f"{len(clauses(test))} clauses; first names of one that are last names of the other: "
            f"{', '.join(sorted(_crossed(test, tasks[split]))) or 'none'}"
        )
    count = repeated(given.demonstrations, openings(test))
    print(f"{count} of {given.demonstrations} demonstrations open with the words of a test task")


def _crossed(one: Iterable[Task], two: Iterable[Task]) -> set[str]:
    one, two = list(one), list(two)
    return (names(one, 0) & names(two, -1)) | (names(one, -1) & names(two, 0))


if __name__ == "__main__":
    main()
