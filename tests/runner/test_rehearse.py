"""Rehearsals: every shipped experiment's settings are cut down, and some are rehearsed whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import recorded, write_apart

from trace_bench.core.errors import UserError
from trace_bench.core.types import Check, Score, Task, Turn
from trace_bench.play.suites import Suites
from trace_bench.rehearse.__main__ import main
from trace_bench.results.folder import read_run
from trace_bench.runner.cut import make_miniature, small
from trace_bench.settings.choices import conf_dir
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of, served_name
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.memory import shape_of

EXPERIMENTS = sorted(p.stem for p in (conf_dir() / "experiment").glob("*.yaml"))
REHEARSED = ("paper_cm2", "paper_tau2_heldout", "paper_toolsandbox", "smoke", "smollm2")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_cut_down(name: str, tmp_path: Path) -> None:
    own = compose([f"experiment={name}"])
    cut = small(own, tmp_path)
    cut.with_servers("http://127.0.0.1:1/v1", "http://127.0.0.1:2")
    cut.with_model(tmp_path / "model")
    found = cut.settings
    assert found.rehearsal and found.run_dir == str(tmp_path / "run")
    assert found.experiment == name and found.method.name == own.method.name
    assert served_name(found.model) == served_name(own.model)
    options, before = (parts_of(s)["trainer"].options for s in (found, own))
    assert options["group_size"] <= 4 and options["learning_rate"] >= 0.01
    assert options["algorithm"] == before["algorithm"] and options["rank"] == before["rank"]
    roles = [role for role in found.llm.roles.values() if role.by == "endpoint"]
    here = [url for role in roles for url in role.base_url or ()]
    here += parts_of(found)["policy"].options.get("base_url", ())
    assert all(url.startswith("http://127.0.0.1:") for url in here)
    sizes = {"smollm2": 576, "paper": 2048 if name != "paper_cm2" else 4096}
    for begin, hidden in sizes.items():
        if name.startswith(begin):
            shape = shape_of(served_name(own.model))
            assert shape is not None and shape.hidden == hidden


@pytest.mark.parametrize(
    ("model", "kind"),
    [("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_moe"), ("Qwen2.5-7B", "qwen2"),
     ("smollm2", "llama"), (str(MODEL_FOLDER), "qwen3")],
)  # fmt: skip
def test_a_miniature_has_the_architecture(model: str, kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    made, shape = make_miniature(model, tmp_path, 4096), shape_of(model)
    config = AutoConfig.from_pretrained(tmp_path)
    assert shape is not None and config.model_type == kind
    assert config.tie_word_embeddings == shape.tied
    assert config.max_position_embeddings == 4096
    assert sum(f.stat().st_size for f in tmp_path.glob("*.safetensors")) < 2_000_000
    whole = "its tokenizer and chat template" in made.same
    assert whole == Path(model).is_dir() == (len(made.other) == 1)


def test_a_model_of_unknown_sizes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sizes of who/knows-7B .* `model.path`"):
        make_miniature("who/knows-7B", tmp_path, 1024)


def test_lots_fall_on_the_suites_own_tasks_and_follow_from_what_was_said() -> None:
    own, zero = Task("a/0", "a", "train", 0, {}), Score(0.0, False)
    suites = Suites(None, lots=True)  # type: ignore[arg-type]
    suites.add("generated/x", None)  # type: ignore[arg-type]
    said = [Turn((), {"role": "assistant", "content": str(n)}) for n in range(40)]
    scores = [suites.scored(own, [turn], zero) for turn in said]
    assert scores == [suites.scored(own, [turn], zero) for turn in said]
    assert 10 < sum(score.success for score in scores) < 30
    checked = Score(0.0, False, checks=(Check(0, "a", 0.5), Check(0, "b", 0.5)))
    drawn = [check.step for turn in said for check in suites.scored(own, [turn], checked).checks]
    assert set(drawn) == {0, None}
    unread = Turn((), {"role": "assistant", "content": ""}, malformed="?")
    assert {check.step for check in suites.scored(own, [unread], checked).checks} == {None}
    made = Task("x/0", "generated/x", "train", 0, {})
    assert suites.scored(made, said, zero) == zero
    assert Suites(None).scored(own, said, zero) == zero  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", REHEARSED)
def test_an_experiment_is_rehearsed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those that differ in world, protocol, roles or model; one more is rehearsed with verl
    (trainers/test_verl_rehearsal.py). No package holds the official ToolSandbox (the embedded suite
    is in its place), and recordings are the user's own."""
    more = {"paper_toolsandbox": ["env.suite=embedded", "evaluation.split=test"]}
    if name == "paper_cm2":
        more[name] = [f"env.folder={write_apart(tmp_path / 'recordings', recorded(6))}"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = []
    monkeypatch.setattr(
        "trace_bench.rehearse.__main__.shutil.rmtree", lambda path, **_: kept.append(path)
    )
    code = main([f"experiment={name}", *more.get(name, ())])
    said = capfd.readouterr().out
    assert code == 0 and "FAILED" not in said, said
    assert "optimizer steps, adapters" in said and "resumed; each is in the ledger once" in said
    assert "in all, at most" in said, "the forecast of the run itself"
    if name.startswith("paper"):
        assert "adapters loaded into the agent's server" in said
        assert "questions, answered by a script" in said or name == "paper_cm2"
    with pytest.raises(UserError, match="a rehearsal"):
        read_run(kept[0] / "run")


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment=paper_cm2"]) == 2
    assert "env=recorded needs env.folder" in capsys.readouterr().err
