"""Settings: what is composed, what is refused and with which words."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from repeated import repeated_keys

from trace_bench.__main__ import main
from trace_bench.core.checked import build
from trace_bench.core.errors import UserError
from trace_bench.settings.choices import GROUPS, conf_dir, files, offered
from trace_bench.settings.compose import compose, compose_all, compose_plain
from trace_bench.settings.identity import differences, identity, parts_of
from trace_bench.settings.registry import KINDS
from trace_bench.settings.schema import Settings

SCRIPTED = ["method=base", "policy=reference"]


def test_the_defaults_are_the_main_job() -> None:
    settings = compose([])
    assert settings.method.name == "trace"
    assert settings.env.name == "toolsandbox"
    assert (settings.env.suite, settings.env.train_split) == ("embedded", "train")
    assert (settings.budget, settings.seed, settings.protocol) == (640, 0, "held_out")
    assert (settings.evaluation.split, settings.evaluation.limit) == ("test", None)
    assert settings.policy.eval_temperature == 0.0


def test_no_key_in_conf_repeats_a_default() -> None:
    repeated, keys = repeated_keys()
    assert keys > 60 and not repeated


@pytest.mark.parametrize(
    "file", sorted((conf_dir() / "experiment").glob("*.yaml")), ids=lambda f: f.stem
)
def test_every_experiment_composes_under_its_own_name(file: Path) -> None:
    settings = compose([f"experiment={file.stem}"])
    assert settings.experiment == file.stem


OWN_PARTS = {
    "env": "trace_bench.envs.toolsandbox.scenarios.suite:EmbeddedSuite",
    "method": "trace_bench.methods.grpo:Base",
    "policy": "trace_bench.policies.scripted:IdlePolicy",
    "trainer": "trace_bench.trainers.local:LocalTrainer",
    "tracker": "trace_bench.trackers.jsonl:Silent",
    "model": "trace_bench.tiny:shipped",
}


@pytest.mark.slow
def test_every_choice_of_every_group_composes() -> None:
    somewhere = "http://127.0.0.1:1/v1"
    needed = {
        "model=hf": ["model.path=somewhere"],
        "model=served": ["model.name=Some/Model"],
        "model=kept": ["model.name=some"],
        "env=mcp": [f"env.url={somewhere}", "env.tasks=shop:tasks", "env.scorer=shop:score"],
        "env=openenv": [f"env.url={somewhere}"],
        "env=verifiers": ["env.taskset=shop"],
        "policy=openai": [f"policy.base_url={somewhere}"],
        **{f"{group}=custom": [f"{group}.factory={OWN_PARTS[group]}"] for group in OWN_PARTS},
        "llm=endpoint": [
            *("sandbox=docker", f"llm.shared.base_url={somewhere}", "llm.shared.model=M"),
        ],
    }
    choices = [f"{g}={name}" for g in GROUPS for name in sorted({*files(g), *offered(g)})]
    assert len(compose_all([[c, *needed.get(c, [])] for c in choices])) == len(choices) > 30


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("method=tarce", ["unknown method 'tarce'", "base", "trace", "`method`"]),
        (
            "env=sandbox",
            ["unknown env 'sandbox'", "toolsandbox", "`env=custom env.factory=module:attribute`"],
        ),
        (
            "env=toolsandbox env.factory=trace_bench.envs.bfcl.suite:BfclSuite",
            ["`env.factory` is a setting of `env=custom` alone", "Change `env`"],
        ),
        ("experiment=tiny", ["unknown experiment 'tiny'", "smoke"]),
        ("metod=trace", ["unknown key 'metod'", "method", "budget", "Did you mean method?"]),
        ("method=gpro", ["unknown method 'gpro'", "Did you mean grpo?"]),
        ("trainer.lr=0.1", ["unknown key 'trainer.lr'", "Did you mean learning_rate?"]),
        ("env.sute=embedded", ["unknown key 'env.sute'", "suite", "train_split"]),
        ("+budgets=3", ["unknown key 'budgets'", "budget"]),
        ("+env.extra=3", ["unknown key 'env.extra'", "augmentation"]),
        ("+method.gop=3", ["unknown key 'method.gop'", "gap"]),
        ("env.suite=oficial", ["unknown suite of toolsandbox 'oficial'", "embedded", "env.suite"]),
        ("env.augmentation=scrambled", ["unknown value 'scrambled'", "scrambled_names"]),
        ("env.train_split=tarin", ["unknown split of toolsandbox/embedded 'tarin'", "train_large"]),
        ("evaluation.split=tset", ["'tset'", "test", "evaluation.split"]),
        ("sandbox.name=none", ["unknown value 'none'", "inline"]),
        ("tracker.name=mlflow", ["unknown tracker 'mlflow'", "jsonl, wandb, custom"]),
        ("tracker=wandb tracker.mode=on", ["unknown value 'on'", "offline, online"]),
        ("trainer.learning_rate=inf", ["trainer.learning_rate=inf", "that is finite"]),
        ("policy.max_seconds=inf", ["policy.max_seconds=inf", "that is finite"]),
        ("budget=many", ["budget='many'", "a whole number from 0"]),
        ("budget=-1", ["budget=-1", "a whole number from 0"]),
        ("budget=1.5", ["budget=1.5", "a whole number"]),
        ("seed=true", ["seed=True", "a whole number"]),
        ("checkpoints=320", ["checkpoints=320", "a list"]),
        ("checkpoints=[-3]", ["checkpoints=-3", "from 0"]),
        ("policy.eval_temperature=hot", ["policy.eval_temperature='hot'", "a number from 0"]),
        ("method.name=mine", ["unknown method 'mine'", "custom (with method.factory=module:attr"]),
        ("method=custom", ["method=custom needs method.factory"]),
        ("+method.options.gap=1", ["`method.gap` and `method.options.gap` are the same setting"]),
        ("method.gap=7", ["method.gap=7", "0 to 1"]),
        ("method=grpo method.reward=speed", ["unknown value 'speed'", "success"]),
        ("trainer=verll", ["unknown trainer 'verll'", "local"]),
        ("trainer.ranks=3", ["unknown key 'trainer.ranks'", "group_size"]),
        ("trainer.rank=0", ["trainer.rank=0", "from 1"]),
        ("trainer.decay=cosine", ["unknown value 'cosine'", "linear", "trainer.decay"]),
        ("model=hf", ["model.path", "must be given"]),
        ("policy=idle", ["policy=idle is scripted", "method=trace"]),
        ("env.train_split=test", ["protocol=held_out", "env.train_split=test", "protocol=paper"]),
        ("budget", ["cannot be read", "setting=value"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    override: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(override.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("group", list(KINDS))
def test_a_factory_needs_no_choice_beside_it(group: str) -> None:
    """It is another part than the default, whose settings it does not have."""
    given = f"{group}.factory=nowhere:Mine"
    with pytest.raises(UserError, match=f"{group}.factory=nowhere:Mine: the module nowhere"):
        compose([given])
    bare, named = compose_plain([[given], [f"{group}=custom", given]])
    assert bare == named and bare[group]["name"] == "custom"


def test_a_factory_does_not_replace_what_an_experiment_chooses() -> None:
    with pytest.raises(UserError, match="a setting of `method=custom` alone"):
        compose(["method.factory=nowhere:Mine", "experiment=smoke"])


@pytest.mark.parametrize(
    "flags", [["-m"], ["--config-dir", "."], ["--cfg", "job"], ["--config-dir=.", "-m"]]
)
def test_a_factory_is_understood_behind_flags(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code = main([*flags, "method.factory=nowhere:Mine", "seed=0"])
    found = capfd.readouterr()
    assert "the module nowhere cannot be imported" in found.err or "nowhere:Mine" in found.out
    assert code == 2 or flags[0] == "--cfg"


def test_no_factory_is_no_choice() -> None:
    assert compose(["env.factory=null"]).env.name == "toolsandbox"


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose([]).budget = 1  # type: ignore[misc]


def of(*overrides: str) -> dict[str, Any]:
    settings = compose([*overrides])
    return identity(settings, parts_of(settings))


def test_identity_ignores_where_and_keeps_what() -> None:
    here = of(*SCRIPTED)
    for elsewhere in ("run_dir=there", "runs_root=there", "tracker=wandb", "sandbox=docker"):
        assert here == of(*SCRIPTED, elsewhere)
    changed = of(*SCRIPTED, "seed=1", "env.suite=embedded")
    assert differences(here, changed) == ["seed: 0 -> 1"]


def test_identity_of_a_served_agent_knows_no_address() -> None:
    served = ["method=base", "policy=openai", "model=served", "model.name=m"]
    one = of(*served, "policy.base_url=http://127.0.0.1:1/v1", "policy.deadline=5")
    assert one == of(*served, "policy.base_url=http://127.0.0.1:2/v1", "policy.key_env=KEY")
    assert one != of(*served, "policy.base_url=http://127.0.0.1:1/v1", "policy.extra={a: 1}")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_identity_knows_the_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"one")
    overrides = ["method=base", "model=hf", f"model.path={tmp_path}"]
    one = of(*overrides)
    (tmp_path / name).write_bytes(b"two")
    (changed,) = differences(one, of(*overrides))
    assert changed.startswith("model.sha256: ")


def test_many_compose_as_each_alone() -> None:
    runs = [
        ["method=grpo", "budget=320"],
        ["method=grpo", "budget=640", "trainer.rank=8", "+checkpoints=[1,2]"],
        ["method=trace", "env=tau2", "env.domain=retail", "evaluation.split=base"],
        ["experiment=smoke", "seed=4"],
    ]
    runs[1][-1] = "checkpoints=[1,2]"
    assert compose_all(runs) == [compose(run) for run in runs]


def test_a_setting_with_keys_of_any_name_takes_them() -> None:
    found = compose(
        ["env=verifiers", "env.taskset=shop", "env.args.size=2", "env.splits={dev: {part: new}}"]
    )
    assert found.env.options["args"] == {"size": 2}
    assert found.env.options["splits"] == {"dev": {"part": "new"}}


def test_the_paper_protocol_has_its_name() -> None:
    assert compose(["protocol=paper", "env.train_split=test"]).protocol == "paper"


def test_missing_field_is_named() -> None:
    with pytest.raises(UserError, match=r"`env` is missing"):
        build(Settings, {})


def test_help_and_cfg_speak_to_a_newcomer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("experiment=smoke", "gepa, grpo", "budget=640", "resumes"):
        assert word in text
    assert len(text.splitlines()) < 70 and max(map(len, text.splitlines())) < 100
    assert main(["method=base", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["method"] == {"name": "base"}


def test_help_needs_no_heavy_library() -> None:
    code = (
        "import sys; from trace_bench.__main__ import main\n"
        "main(['--help'])\n"
        "heavy = {'torch', 'transformers', 'scipy', 'pint'} & set(sys.modules)\n"
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_multirun_goes_on_after_a_bad_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [*SCRIPTED, "env.train_split=test,train", "evaluation.limit=3"]
    assert main(["-m", *overrides]) == 2
    said = capsys.readouterr()
    assert "protocol=held_out" in said.err
    assert said.out.rstrip().splitlines()[-1].startswith("run: runs/toolsandbox/base/")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]
