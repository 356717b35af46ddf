"""A folder of runs in which most are damaged or mean harm: each is named and left out, and the
others go on, in every command that looks at runs."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from shared import RUN

import trace_bench.show
from trace_bench.__main__ import main
from trace_bench.core.run_files import ELSEWHERE
from trace_bench.core.store import file_hash, fingerprint
from trace_bench.results.__main__ import main as results
from trace_bench.results.run import read_records

Said = pytest.CaptureFixture[str]
Json = dict[str, Any]
Damage = Callable[[Path], Any]
GONE = object()


def summary(**values: Any) -> Damage:
    """A summary with other values, all its hashes as they were."""
    return lambda folder: rewrite(folder / "summary.json", lambda s: put(s, values))


def put(data: Json, values: Json) -> None:
    for key, value in values.items():
        inside, _, last = key.rpartition("__")
        place = data[inside] if inside else data
        if value is GONE:
            del place[last]
        else:
            place[last] = value


def rewrite(path: Path, change: Callable[[Json], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def settings(**values: Any) -> Damage:
    """Other settings, and a summary that fits them."""

    def damage(folder: Path) -> None:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        put(config, values)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        identity = {key: value for key, value in config.items() if key not in ELSEWHERE}
        summary(fingerprint=fingerprint(identity))(folder)

    return damage


def line(name: str, **values: Any) -> Damage:
    """Another line of a file (of the trained agent, where a line is of one), and a summary that
    fits it."""

    def damage(folder: Path) -> None:
        lines = [json.loads(text) for text in (folder / name).read_text().splitlines()]
        put(next(one for one in lines if one.get("agent", "final") == "final"), values)
        texts = [json.dumps(one, separators=(",", ":")) for one in lines]
        (folder / name).write_text("\n".join([*texts, ""]))
        rewrite(folder / "summary.json", lambda s: rehash(s, folder))

    return damage


def held_out_rollout(folder: Path) -> None:
    """The method has played a task that it is measured on."""
    task = json.loads((folder / "evaluation.jsonl").read_text().split("\n", 1)[0])["task"]
    path = folder / "ledger.jsonl"
    path.write_text(re.sub(r'"task":"[^"]*"', f'"task":"{task}"', path.read_text(), count=1))
    rewrite(folder / "summary.json", lambda s: rehash(s, folder))


def rehash(data: Json, folder: Path) -> None:
    data["hashes"] = {name: file_hash(folder / name) for name in data["hashes"]}


POISONED: dict[str, Damage] = {
    "the summary is only complete": lambda f: (f / "summary.json").write_text('{"complete": true}'),
    "a budget in words": summary(budget="x"),
    "a budget without end": summary(budget=10**400),
    "rollouts in words": summary(rollouts={"training": "x"}),
    "a capability with a bell": summary(capabilities=["\x07"]),
    "an adapter that is none": summary(adapters=[None]),
    "times that are none": summary(wall_s={"method": float("nan")}),
    "a commit that is a number": summary(git={"commit": 5, "changed": False}),
    "a method that is a surrogate": summary(method="\ud800"),
    "a method that clears the screen": summary(method="\x1b[2Jgrpo"),
    "a method without end": summary(method="x" * 10**6),
    "no hashes": summary(hashes=GONE),
    "no fingerprint": summary(fingerprint=None),
    "a routing without figures": summary(routing={"agreement": 0.5}),
    "trials without end": settings(evaluation__trials=10**30),
    "no evaluation": settings(evaluation=GONE),
    "a method's settings in words": settings(method="x"),
    "a success without end": line("evaluation.jsonl", score={"success": 1e308, "similarity": 1}),
    "a score that is a list": line("evaluation.jsonl", score=[1]),
    "a task that is a list": line("evaluation.jsonl", task=[]),
    "a rollout of a held-out task": held_out_rollout,
}


@pytest.fixture(scope="module")
def tree(grpo_run: Path, base_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good runs, and below them bad ones with other fingerprints."""
    place = tmp_path_factory.mktemp("tree")
    for name, run in (("grpo", grpo_run), ("base", base_run)):
        shutil.copytree(run, place / "good" / name)
    bad = place / "bad"
    for number, damage in enumerate(POISONED.values()):
        copy = bad / f"{number:03d}"
        shutil.copytree(grpo_run, copy)
        settings(seed=number + 100)(copy)
        damage(copy)
    (bad / "empty").mkdir()
    (bad / "no settings").mkdir()
    (bad / "no settings" / "ledger.jsonl").write_text("{}\n")
    (bad / "a circle").symlink_to(place)
    (bad / "nowhere").symlink_to(bad / "nowhere")
    os.mkfifo(bad / "a pipe")
    deep = bad
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    return place


def test_bad_folders_are_named_and_left_out(tree: Path, tmp_path: Path, capfd: Said) -> None:
    out = tmp_path / "records.jsonl"
    assert results(["collect", str(tree), "--out", str(out)]) == 0
    said = capfd.readouterr().err
    assert not [c for c in said if c != "\n" and not c.isprintable()]
    runs = sorted(p.name for p in (tree / "bad").iterdir() if p.name.isdigit())
    skipped = [text for text in said.splitlines() if text.startswith("skipped: ")]
    named = {name for name in runs if any(f"{tree / 'bad' / name}" in t for t in skipped)}
    assert set(runs) - named == set(), "a damaged run is in the tables"
    assert len(skipped) == len(said.splitlines()) >= len(runs) + 3
    assert [r.method for r in read_records(out)] == ["base", "grpo"]


@pytest.mark.usefixtures("no_figures")
def test_the_others_go_on(tree: Path, tmp_path: Path, capfd: Said) -> None:
    """As they would without the bad ones, whose number is in the captions: every command has its
    runs from the same reader."""
    for name, place in (("with", tree), ("without", tree / "good")):
        asked = ["tables", str(place), "--out", str(tmp_path / name)]
        assert results(asked) == 0
    assert "Traceback" not in capfd.readouterr().err
    assert texts(tmp_path / "with") == texts(tmp_path / "without")


def texts(place: Path) -> dict[str, str]:
    files = [place] if place.is_file() else place.rglob("*")
    written = {p.name.replace(place.name, ""): p.read_text() for p in files if p.is_file()}
    return {name: without_count(text) for name, text in written.items()}


def without_count(text: str) -> str:
    head, mark, rest = text.partition(" Run folders that could not be used: ")
    return head + rest.partition(".")[2] if mark else text


def test_each_can_be_shown_or_is_refused_in_a_line(tree: Path, capfd: Said) -> None:
    codes = set()
    for folder in sorted((tree / "bad").iterdir()):
        code = trace_bench.show.main([str(folder)])
        said = capfd.readouterr()
        assert code in (0, 2), folder
        codes.add(code)
        if code == 2:
            assert said.err.startswith("error: ") and said.err.count("\n") == 1, said.err
        assert not [c for c in said.out + said.err if c != "\n" and not c.isprintable()]
    assert codes == {0, 2}


EPISODES: dict[str, Callable[[Json], Any]] = {
    "no task": lambda t: t.pop("task"),
    "a similarity in words": lambda t: t.update(score={"success": True, "similarity": "x"}),
    "a turn that is a number": lambda t: t.update(turns=[5]),
    "a call without a function": lambda t: t["turns"][0].update(
        reply={"role": "assistant", "content": None, "tool_calls": [{}]}
    ),
    "another stop": lambda t: t.update(stop="x"),
    "a surrogate": lambda t: t.update(task="\ud800"),
    "a task without end": lambda t: t.update(task="x" * 10**6),
}


@pytest.mark.parametrize("name", EPISODES)
def test_an_episode_is_shown_or_refused_in_a_line(
    name: str, grpo_run: Path, tmp_path: Path, capfd: Said
) -> None:
    first = (grpo_run / "trajectories.jsonl").read_text().splitlines()[0]
    data = json.loads(first)
    EPISODES[name](data["trajectory"])
    (tmp_path / "trajectories.jsonl").write_text(json.dumps(data) + "\n")
    task = str(data["trajectory"].get("task", "x"))
    for typed in ([], [task], [task, "0"]):
        code = trace_bench.show.main([str(tmp_path), *typed])
        said = capfd.readouterr()
        assert code in (0, 2) and "Traceback" not in said.err
        assert code == 0 or (said.err.startswith("error: ") and said.err.count("\n") == 1)


@pytest.mark.parametrize("damage", [summary(score=GONE), summary(rollouts="x")])
def test_a_finished_run_with_a_damaged_summary_is_refused(
    damage: Damage, base_run: Path, tmp_path: Path, capsys: Said
) -> None:
    shutil.copytree(base_run, tmp_path / "run")
    damage(tmp_path / "run")
    assert main(["method=base", *RUN.split(), f"run_dir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("error: ") and "summary.json is damaged" in said[-1]
    assert "Remove the file" in said[-1]
