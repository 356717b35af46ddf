"""Our scorer against the official one, case by case, and what the cases are worth: each of many
wrong scorers must fail one of them.

The official scores stand in official_cases.json, made by tests/official_cases.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scorer_cases import cases, digest

from trace_bench.envs.toolsandbox import goals
from trace_bench.envs.toolsandbox import score as scorer
from trace_bench.envs.toolsandbox.databases import LogEntry

SOURCE, PYTHON = os.environ.get("TOOLSANDBOX_SOURCE"), os.environ.get("TOOLSANDBOX_PYTHON")
TABLE = json.loads((Path(__file__).parent / "official_cases.json").read_text())
CASES = cases()
NEAR = 2e-6  # the official code computes in 32 bits

MODULES = {"goals": goals, "score": scorer}
# What the mutant does, its module, a line of the scorer, and the line as the mutant has it.
MUTANTS = [
    ("guards are ignored", "score", "if now is not before and now != before:", "if False:"),
    ("guards look at new rows only", "score", "if now is not before and now != before:",
     "if any(row not in before for row in now):"),
    ("guards refer to the start", "score",
     "0 if guard.since is None else moments[guard.since]", "0"),
    ("differences refer to the start", "score",
     "0 if constraint.since is None else moments[constraint.since]", "0"),
    ("a difference is kept for all references", "score",
     "key = (id(constraint), at, reference)", "key = (id(constraint), at, 0)"),
    ("guards count in the mean", "score", "product ** (1 / len(milestone.constraints))",
     "product ** (1 / (len(milestone.constraints) + len(milestone.guards)))"),
    ("product of constraints", "score",
     "return product if product == 1.0 else product ** (1 / len(milestone.constraints))",
     "return product"),
    ("product of columns", "score",
     "return product if product == 1.0 else product ** (1 / count)", "return product"),
    ("product of rows", "score",
     "return best if best in (0.0, 1.0) else best ** (1 / count)", "return best"),
    ("rows are paired in order", "score",
     "for order in permutations(range(count)))", "for order in [range(count)])"),
    ("the worst pairing", "score",
     "best = max(math.prod(", "best = min(math.prod("),
    ("many rows are paired in order", "score",
     "return [int(i) for i in linear_sum_assignment(costs)[1]]", "return list(range(len(table)))"),
    ("the pairing maximizes similarities' sum", "score",
     "-math.log(value) if value > 0 else never", "-value"),
    ("more rows than wanted", "score", "if count != len(rows):", "if count > len(rows):"),
    ("row counts are unchecked", "score",
     "    if count != len(rows):\n        return 0.0\n",
     "    if count != len(rows):\n        return float(bool(rows))\n"),
    ("a null with nothing to compare is a 1", "score",
     "if any(len(line) < count for line in table):\n        return 0.0",
     "if any(len(line) < count for line in table):\n        return 1.0"),
    ("a null in a whole database is compared", "score",
     "if measure == \"exact\" and value is None", "if False and value is None"),
    ("a null in a whole database counts in the mean", "score",
     "            continue\n        count += 1", "            count += 1\n            continue\n"
     "        count += 1"),
    ("rows keep their nulls", "score",
     "    now, then = without_nulls(now), without_nulls(then)\n", ""),
    ("targets keep their nulls", "goals",
     'data["rows"] if kind == "snapshot" else without_nulls(data["rows"])', 'data["rows"]'),
    ("targets lose their nulls", "goals",
     'data["rows"] if kind == "snapshot" else without_nulls(data["rows"])',
     'without_nulls(data["rows"])'),
    ("added: the rest is unchecked", "score",
     "if both == len(then) else None", 'if both == len(then) or kind == "added" else None'),
    ("removed: the rest is unchecked", "score",
     "if both == len(then) else None", 'if both == len(then) or kind == "removed" else None'),
    ("updated: the rest is unchecked", "score", " if len(now) == len(then) else None", ""),
    ("updated: the old rows", "score",
     "return [row for row in now if row not in then] if len(now)",
     "return [row for row in then if row not in now] if len(now)"),
    ("removed is added", "score", 'if kind == "removed":', "if False:"),
    ("added is snapshot", "score", 'if constraint.kind != "snapshot":',
     'if constraint.kind not in ("snapshot", "added"):'),
    ("twins are one", "score", "sum(row == other for row in then for other in now)",
     "sum(row in now for row in then)"),
    ("only the last state counts", "score",
     "now = self.snapshots[at][constraint.database]",
     "now = self.snapshots[-1][constraint.database]"),
    ("arguments are ignored", "score",
     '_arguments_similarity(columns, trace["arguments"])\n', "1.0\n"),
    ("arguments that were not given are ignored", "score",
     "column_similarity(measure, arguments[name], target) if name in arguments else 0.0",
     "column_similarity(measure, arguments[name], target) if name in arguments else 1.0"),
    ("arguments that were not given are null", "score",
     "column_similarity(measure, arguments[name], target) if name in arguments else 0.0",
     "column_similarity(measure, arguments.get(name), target)"),
    ("the tool is ignored", "score", 'if name == trace["name"]', "if True"),
    ("the first alternative only", "score", "max(scores, default=0.0)", "next(scores, 0.0)"),
    ("no tolerance", "score", '<= measure["tolerance"]', "<= 0"),
    ("true has no tolerance", "score", "isinstance(value, int | float) and",
     "isinstance(value, int | float) and not isinstance(value, bool) and"),
    ("near is equal", "score", "return float(value == target)",
     "return float(value == target or (isinstance(value, float) and value and "
     "isinstance(target, float) and math.isclose(value, target)))"),
    ("true is not 1", "score", "return float(value == target)",
     "return float(value == target and isinstance(value, bool) == isinstance(target, bool))"),
    ("1 is not 1.0", "score", "return float(value == target)",
     "return float(value == target and type(value) is type(target))"),
    ("anything is equal", "score", "return float(value == target)", "return 1.0"),
    ("texts are equal or not", "score", "return rouge_l(target, value) if",
     "return float(target == value) if"),
    ("precision", "score", ".fmeasure", ".precision"),
    ("recall", "score", ".fmeasure", ".recall"),
    ("no stems", "score", "use_stemmer=True", "use_stemmer=False"),
    ("single words", "score", "rougeL", "rouge1"),
    ("who speaks is ignored", "score", "return rows_similarity(constraint.columns, (row,))",
     "return rows_similarity([[c for c in constraint.columns[0] if c[0] == 'content']], (row,))"),
    ("relationships are exact", "goals", '"CONTACT": ("relationship",)', '"CONTACT": ()'),
    ("edges that are not given are none", "goals",
     "edges = [(i, i + 1) for i in range(len(read) - 1)]", "edges = []"),
    ("milestones in no edge are matched", "goals",
     "sum(1 << i for i in named)", "(1 << len(read)) - 1"),
    ("a single milestone needs an edge", "goals", "{0} if len(read) == 1 else {i ", "{i "),
    ("order goes by direct edges' first end only", "goals",
     "before[second] |= 1 << first", "before[second] |= 1 << first if first == 0 else 0"),
    ("minefields are ignored", "score", "if mined is not None and mined > 0.0:", "if False:"),
    ("minefields are hit in full", "score", "mined > 0.0:", "mined > 0.999:"),
    ("minefields take off their share", "score", "similarity = 0.0", "similarity -= mined"),
    ("nothing to do is 0", "score", "1.0 if mean is None else mean", "mean or 0.0"),
    ("the order of milestones is ignored", "score", " or goal.before[i] & ~placed", ""),
    ("a message for each milestone", "score", "fresh = list(grown)", "fresh = []"),
    ("the first match stays", "score",
     "target not in states or reached > states[target][0] + _TIE", "target not in states"),
    ("the mean over matched milestones", "score", "total / sum(goal.weights)",
     "total / max(1, sum(1 for m in _placements(chain) if m))"),
    ("the user's request is not looked at", "score",
     "range(1, len(similarities.log))", "range(2, len(similarities.log))"),
    ("the last message is not looked at", "score",
     "range(1, len(similarities.log))", "range(1, len(similarities.log) - 1)"),
]  # fmt: skip
HELP = """
def _placements(chain):
    while chain is not None:
        yield chain[2]
        chain = chain[3]
"""


def score(episode: Callable[..., Any], read: Callable[..., Any], case: dict[str, Any]) -> float:
    states = [{name: tuple(rows) for name, rows in s.items()} for s in case["states"]]
    found = episode(
        read(case["milestones"], case["edges"]),
        read(case["minefields"], case["minefield_edges"]),
        [LogEntry(*line) for line in case["log"]],
        states,
    )
    return float(found.similarity)


def test_the_scores_belong_to_these_cases() -> None:
    """Otherwise `PYTHON tests/official_cases.py CHECKOUT --write` makes the table again."""
    assert TABLE["cases"] == digest(CASES)
    values = TABLE["scores"].values()
    assert len(values) == len(CASES) > 400 and sum(0 < v < 1 for v in values) > 100
    mined = [c for c in CASES if c["minefields"]]
    assert len(mined) > 50 and sum(TABLE["scores"][c["name"]] > 0 for c in mined) > 20


def test_our_scorer_gives_what_the_official_one_gives() -> None:
    for case in CASES:
        found = score(scorer.score_episode, goals.read_goal, case)
        assert found == pytest.approx(TABLE["scores"][case["name"]], abs=NEAR), case["name"]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, ModuleType]]]:
    """The scorer's modules with one of them changed."""

    def load(changed: str, old: str, new: str) -> dict[str, ModuleType]:
        made = {}
        for name, module in MODULES.items():
            text = Path(str(module.__file__)).read_text()
            if name == changed:
                assert old in text, f"{name}.py has no {old!r} any more: change the mutant"
                text = text.replace(old, new) + HELP
            made[name] = ModuleType(module.__name__)
            monkeypatch.setitem(sys.modules, module.__name__, made[name])
            exec(compile(text, f"{name}.py", "exec"), made[name].__dict__)
        return made

    yield load


@pytest.mark.parametrize(("changed", "old", "new"), [m[1:] for m in MUTANTS],
                         ids=[m[0] for m in MUTANTS])  # fmt: skip
def test_a_wrong_scorer_fails_a_case(
    load: Callable[..., dict[str, ModuleType]], changed: str, old: str, new: str
) -> None:
    made = load(changed, old, new)
    for case in CASES:
        try:
            found = score(made["score"].score_episode, made["goals"].read_goal, case)
        except (IndexError, KeyError, TypeError, ValueError):
            return  # it cannot even score the case
        if abs(found - TABLE["scores"][case["name"]]) > NEAR:
            return
    pytest.fail(f"no case tells this scorer from ours: {old!r} -> {new!r}")


def test_loading_without_a_change_gives_our_scores(
    load: Callable[..., dict[str, ModuleType]],
) -> None:
    """What the mutants fail is due to their change."""
    made = load("goals", "", "")
    for case in CASES:
        found = score(made["score"].score_episode, made["goals"].read_goal, case)
        assert found == pytest.approx(TABLE["scores"][case["name"]], abs=NEAR), case["name"]


@pytest.mark.slow
@pytest.mark.skipif(
    not (SOURCE and PYTHON),
    reason="needs a checkout of the official ToolSandbox (TOOLSANDBOX_SOURCE, TOOLSANDBOX_PYTHON)",
)
def test_the_official_scorer_gives_these_scores_again() -> None:
    script = Path(__file__).parents[1] / "official_cases.py"
    command = [str(PYTHON), str(script), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
