"""A tiny agent for any world: what it is shown, how it is made, and what a run does with it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from safetensors.torch import load_file
from toy import ToyEnv, ToySuite, toy_task

import trace_bench
from trace_bench.__main__ import main as run_main
from trace_bench.core.chat import call_message, make_tool, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Suite
from trace_bench.core.types import Message, Task
from trace_bench.play.demonstrations import Demonstration, demonstrations
from trace_bench.tiny import MODEL_FOLDER, make
from trace_bench.tiny.__main__ import main
from trace_bench.tiny.tasks import pieces_of, renamed

PLACES = {"train": 0, "demo": 100, "dev": 200, "test": 300}
QUICK: dict[str, Any] = {"demonstrations": 60, "passes": 3, "size": 0.3}


class Sums(ToySuite):
    """The toy world in four splits, of which every second task needs `adds_twice`."""

    tag_keys = ("needs",)

    def __init__(self, without: str = "", same: str = "") -> None:
        super().__init__()
        self.without, self.same = without, same

    def splits(self) -> list[str]:
        return [split for split in PLACES if split != self.without]

    def tasks(self, split: str) -> list[Task]:
        first = PLACES[self.same if split == "demo" and self.same else split]
        return [self.task(f"{split}/{first + n}") for n in range(12)]

    def task(self, task_id: str) -> Task:
        split, number = task_id.split("/")
        found = toy_task(int(number))
        needs = ["adds_twice"] if len(found.data["add"]) == 2 else ["adds"]
        data = {**found.data, "needs": needs, "number": int(number)}
        return Task(task_id, "toy", split, found.seed, data)


class Knows(ToyEnv):
    """Knows what is left to add, and gives up on a sum that is too large."""

    def solution(self) -> Sequence[Message]:
        total = sum(self.task.data["add"])
        if self.sum > total:
            return ()
        rest = [call_message("add", {"number": total - self.sum})] if self.sum < total else []
        return [*rest, text_message(f"sum {total}")]


class Solved(Sums):
    def make(self) -> ToyEnv:
        return Knows(9)

    def reference(self, task: Task) -> Sequence[Message]:
        raise AssertionError("its program knows better")


class Makes(Sums):
    """Makes what it also holds out."""

    def capabilities(self) -> list[str]:
        return ["adds"]

    def synthetic(self, capability: str, seed: int) -> Task:
        return self.task(f"test/{300 + seed}")


def folder_bytes(folder: Path) -> dict[str, bytes]:
    kept = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".md"}
    training = json.loads(kept.pop("training.json"))
    training["report"].pop("seconds_in_all"), training["report"].pop("seconds")
    training["shown"].pop("seconds")
    return kept | {"training.json": json.dumps(training).encode()}


@pytest.mark.parametrize("suite", [Sums(), Solved()], ids=["references", "program"])
def test_demonstrations_end_well_and_mistakes_are_not_learned(suite: Suite) -> None:
    found = list(demonstrations(suite, suite.tasks("demo"), 120, seed=0, max_turns=9, hasty=0.0))
    assert len(found) > 60
    repaired = 0
    for shown in found:
        said = [m for m in shown.messages if m["role"] == "assistant"]
        assert len(said) == len(shown.learned) and shown.learned[-1]
        total = sum(suite.task(shown.task).data["add"])
        assert said[-1]["content"] == f"sum {total}"
        texts = [text for text, learned in pieces_of(shown) if learned]
        assert len(texts) == sum(shown.learned) and texts[-1].startswith("sum ")
        if not all(shown.learned):
            repaired += 1
            wrong = said[shown.learned.index(False)]["tool_calls"][0]["function"]["arguments"]
            assert "number" in wrong
    assert repaired >= 5
    again = list(demonstrations(suite, suite.tasks("demo"), 120, seed=0, max_turns=9, hasty=0.0))
    assert again == found


@pytest.mark.parametrize("suite", [Sums(), Solved()], ids=["references", "program"])
def test_hasty_demonstrations_leave_out_a_call_and_are_learned(suite: Suite) -> None:
    """In half of them: a call fewer than the solution has, and the closing words."""
    shown = list(demonstrations(suite, suite.tasks("demo"), 120, seed=0, max_turns=9, hasty=0.5))
    calls = [sum("tool_calls" in m for m in one.messages) for one in shown if all(one.learned)]
    own = [suite.task(one.task).data["add"] for one in shown if all(one.learned)]
    numbers = [len(numbers) if type(suite) is Sums else 1 for numbers in own]
    missing = [n - c for n, c in zip(numbers, calls, strict=True)]
    assert set(missing) == {0, 1} and 0.35 <= sum(missing) / len(missing) <= 0.65


def test_names_are_invented_the_same_wherever_they_stand() -> None:
    """A word that is read and then written; none of a tool's definition, none that only the agent
    or only the world says."""
    tool = make_tool("pay", "Pays in euros.", to="string", note="string")
    call = call_message("pay", {"to": "Alma Berg", "note": "thanks, in euros"})
    said = "Pay Alma Berg, not Alman, in euros."
    messages = (
        {"role": "user", "content": said},
        call,
        {"role": "tool", "content": "ALMA? No: Alma is paid.", "tool_call_id": "c"},
        text_message("Alma is paid."),
    )
    shown = Demonstration("t", messages, (tool,), (True, True))
    seen = {text_of(renamed(shown, Random(n), {})) for n in range(200)}
    new = [text for text in seen if text != text_of(shown)]
    assert len(new) > 30 and text_of(shown) in seen
    for text in new:
        first, last, *_ = re.findall(r"Pay (\w+) (\w+), not Alman, in euros", text)[0]
        assert first[0].isupper() and last[0].isupper() and (first, last) != ("Alma", "Berg")
        assert f'"to": "{first} {last}"' in text and f"ALMA? No: {first} is paid." in text
        assert '"note": "thanks, in euros"' in text
    assert renamed(shown, Random(3), {}) == renamed(shown, Random(3), {})
    names = {"Oslo": None}
    known = {text_of(renamed(shown, Random(n), names)) for n in range(200)}
    assert any("Pay Oslo" in text for text in known) and [*names] == ["Oslo", "Alma", "Berg"]


def text_of(shown: Demonstration) -> str:
    return "\n".join(
        str(m["content"]) + "".join(c["function"]["arguments"] for c in m.get("tool_calls") or ())
        for m in shown.messages
    )


@pytest.mark.slow
def test_an_agent_is_made_whole_and_the_same_twice(tmp_path: Path) -> None:
    said: list[str] = []

    class Killed(Exception):
        pass

    def dies(line: str) -> None:
        if line.startswith("step 10/"):
            raise Killed

    figures = make(Sums(), tmp_path / "one", log=lambda line: None, **QUICK)
    assert figures["greedy"]["n"] == 12 and 0 <= figures["sampled"]["success"] <= 1
    with pytest.raises(Killed):
        make(Sums(), tmp_path / "two", log=dies, **QUICK)
    assert [p.name for p in tmp_path.iterdir()] == ["one"]
    assert make(Sums(), tmp_path / "two", log=said.append, **QUICK) == figures
    assert sum(line.startswith("60 demonstrations") for line in said) == 1
    assert folder_bytes(tmp_path / "one") == folder_bytes(tmp_path / "two")
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["one", "two"]
    card = (tmp_path / "one" / "README.md").read_text()
    assert "# A tiny agent for toy/tests" in card and "12 tasks (split demo)" in card
    assert "| greedy | " in card and "70% leave a call of the solution out" in card
    said.clear()
    assert make(Sums(), tmp_path / "two", log=said.append, **QUICK) == figures and not said
    with pytest.raises(UserError, match="was not made by this command with these settings"):
        make(Sums(), tmp_path / "two", **{**QUICK, "seed": 1})


@pytest.mark.slow
def test_an_agent_of_the_shipped_size_begins_with_the_shipped_one(tmp_path: Path) -> None:
    """With its words; a step or two leave its weights near."""
    make(Sums(), tmp_path / "agent", demonstrations=24)
    tokenizer = "tokenizer.json"
    assert (tmp_path / "agent" / tokenizer).read_bytes() == (MODEL_FOLDER / tokenizer).read_bytes()
    card = (tmp_path / "agent" / "README.md").read_text()
    assert "made from the phone world's agent in" in card
    new, old = (load_file(f / "model.safetensors") for f in (tmp_path / "agent", MODEL_FOLDER))
    assert new.keys() == old.keys()
    moved = [float((new[name] - old[name].float()).norm() / old[name].norm()) for name in old]
    assert 0 < max(moved) < 0.3


QUICKER: dict[str, Any] = {"demonstrations": 24, "passes": 1, "size": 0.3}
SHORT = "policy.max_tokens=8"  # such an agent would talk to the end


@pytest.mark.slow
def test_what_it_was_shown_is_not_trained_on(tmp_path: Path) -> None:
    """Without a split for demonstrations they are of every second training task."""
    suite = Sums(without="demo")
    make(suite, tmp_path / "agent", **QUICKER)
    shown = json.loads((tmp_path / "agent" / "demonstrated.json").read_text())["tasks"]
    assert sorted(shown) == sorted(t.id for t in suite.tasks("train")[::2])

    def run(name: str, *more: str) -> Any:
        return trace_bench.run(
            f"model.path={tmp_path / 'agent'}", "trainer.groups=2", SHORT, *more, model="made",
            method="grpo", budget=32, checkpoints=[], env=suite, run_dir=str(tmp_path / name),
        )  # fmt: skip

    ledger = (run("run").folder / "ledger.jsonl").read_text().splitlines()
    played = {json.loads(line)["task"] for line in ledger}
    assert played and not played & set(shown)
    with pytest.raises(UserError, match=r"is more than the split train has.* 1 to 6"):
        run("wanted", "env.train_tasks=7")
    shown |= dict.fromkeys((t.id for t in suite.tasks("train")), "")
    write(tmp_path / "agent", shown)
    with pytest.raises(UserError, match=r"shown every task of env.train_split=train"):
        run("all")
    write(tmp_path / "agent", {suite.tasks("test")[3].id: ""})
    with pytest.raises(UserError, match=r"was shown test/303 of evaluation.split=test"):
        run("held_out")


def write(folder: Path, tasks: dict[str, str]) -> None:
    shown = {"suite": "toy/tests", "split": "train", "tasks": tasks}
    (folder / "demonstrated.json").write_text(json.dumps(shown))


REFUSED = [
    (Sums(same="test"), {}, r"split=demo has 12 tasks of test, such as test/300"),
    (Sums(), {"split": "dev"}, r"split=dev has 12 tasks of dev"),
    (Sums(), {"split": "demos"}, r"unknown split 'demos'"),
    (Sums(), {"size": 2}, r"`model.size` is 2; allowed: 0.3, 1, 4.3"),
    (Sums(), {"hasty": 7}, r"`model.hasty`"),
    (
        Sums(),
        {"synthetic": True, **QUICKER},
        r"toy/tests makes no tasks .* Set `synthetic` to false",
    ),
    (Makes(), {"synthetic": True, **QUICKER}, r"makes tasks of dev or test, such as test/300"),
    (Sums(), {"max_turns": 1, **QUICKER}, "no solution of 12 tasks .* within 1 turns"),
]


@pytest.mark.parametrize(("suite", "options", "why"), REFUSED)
def test_what_cannot_be_is_refused(suite: Suite, options: dict, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why) as refused:
        make(suite, tmp_path / "agent", log=lambda line: None, **options)
    assert "\n" not in str(refused.value) and not (tmp_path / "agent").exists()
    assert {"max_turns", "synthetic"} & set(options) or not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_and_a_run_that_makes_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    world = [f"env.factory={__name__}:Sums", *(f"model.{k}={v}" for k, v in QUICKER.items())]
    words = [word.removeprefix("model.") for word in world]
    assert main(["make", *words]) == 2
    assert "`out` is missing" in capsys.readouterr().err
    assert main(["make", *words, f"out={tmp_path / 'agent'}"]) == 0
    assert "# A tiny agent for toy/tests" in capsys.readouterr().out
    run = [*world, SHORT, "model=made", "method=base", "checkpoints=[]"]
    for more in ((), ("method=grpo",)):
        assert run_main([*run, *more, "dry_run=true"]) == 1
        planned = capsys.readouterr().out
        assert planned.count("the agent of model=made is not made yet") == 1
        assert re.search(r"^base evaluation +12$", planned, re.M) and "not known" not in planned
    result = trace_bench.run(*run, run_dir=str(tmp_path / "run"))
    assert result.score.n == 12
    (made,) = (tmp_path / "cache" / "trace_bench" / "made").glob("toy-*")
    one, two = (folder / "model.safetensors" for folder in (made, tmp_path / "agent"))
    assert one.read_bytes() == two.read_bytes()
