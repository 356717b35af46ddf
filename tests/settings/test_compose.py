"""Settings: what is composed, what is refused and with which words."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.core.types import to_json
from trace_bench.methods.gepa.settings import GepaSettings
from trace_bench.methods.sft.settings import SftSettings
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.settings.compose import compose, conf_dir, differences, identity
from trace_bench.settings.schema import (
    GrpoSettings,
    PolicySettings,
    Settings,
    UntargetedSettings,
    build,
)
from trace_bench.trainers.settings import TrainerSettings

SCRIPTED = ["method=base", "policy=reference"]


def test_the_defaults_are_the_main_job() -> None:
    settings = compose([])
    assert settings.method["name"] == "trace"
    assert settings.env.name == "toolsandbox"
    assert (settings.env.suite, settings.env.train_split) == ("embedded", "train")
    assert (settings.budget, settings.seed, settings.protocol) == (640, 0, "held_out")
    assert (settings.evaluation.split, settings.evaluation.limit) == ("test", None)
    assert settings.policy.eval_temperature == 0.0


@pytest.mark.parametrize(
    "file", sorted((conf_dir() / "policy").glob("*.yaml")), ids=lambda f: f.stem
)
def test_policy_files_spell_out_the_defaults_of_the_schema(file: Path) -> None:
    stored = yaml.safe_load(file.read_text())
    here, server = {"threads", "context", "device"}, {"base_url", "key_env", "deadline"}
    server |= {"retries", "extra"}
    fields = {f.name for f in dataclasses.fields(PolicySettings)}
    assert set(stored) == fields - (here if file.stem == "openai" else server)
    stored["base_url"] = None  # which has no default
    wanted = PolicySettings(name=file.stem, batch=64 if file.stem == "openai" else 128)  # type: ignore[arg-type]
    assert build(PolicySettings, stored) == wanted


def test_trace_file_spells_out_the_defaults_of_its_owner() -> None:
    stored = yaml.safe_load((conf_dir() / "method" / "trace.yaml").read_text())
    assert stored == {"name": "trace", **dataclasses.asdict(TraceSettings())}


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("grpo", GrpoSettings),
        ("gepa", GepaSettings),
        ("sft", SftSettings),
        ("untargeted", UntargetedSettings),
    ],
)
def test_method_files_spell_out_the_defaults_of_their_owners(name: str, owner: type) -> None:
    stored = yaml.safe_load((conf_dir() / "method" / f"{name}.yaml").read_text())
    assert stored == {"name": name, **dataclasses.asdict(owner())}


def test_trainer_file_spells_out_the_defaults_of_its_owner() -> None:
    stored = yaml.safe_load((conf_dir() / "trainer" / "local.yaml").read_text())
    defaults = to_json(TrainerSettings())
    assert stored == {"name": "local", **defaults}


@pytest.mark.parametrize(
    "file", sorted((conf_dir() / "experiment").glob("*.yaml")), ids=lambda f: f.stem
)
def test_every_experiment_composes_under_its_own_name(file: Path) -> None:
    settings = compose([f"experiment={file.stem}"])
    assert settings.experiment == file.stem


def test_every_choice_of_every_group_composes(tmp_path: Path) -> None:
    agent = tmp_path / "agent.json"
    agent.write_text("{}")
    somewhere = "http://127.0.0.1:1/v1"
    needed = {
        "model=hf": ["model.path=somewhere"],
        "model=served": ["model.name=Some/Model"],
        "method=saved": [f"method.agent={agent}"],
        "policy=openai": [f"policy.base_url={somewhere}"],
        "llm=endpoint": [
            *("sandbox=docker", f"llm.shared.base_url={somewhere}", "llm.shared.model=M"),
        ],
    }
    for group in ("env", "method", "policy", "trainer", "sandbox", "tracker", "model", "llm"):
        for file in sorted((conf_dir() / group).glob("*.yaml")):
            extra = ["method=base"] if group == "policy" else []
            choice = f"{group}={file.stem}"
            assert compose([choice, *extra, *needed.get(choice, [])])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("method=tarce", ["unknown method 'tarce'", "base", "trace", "`method`"]),
        ("env=sandbox", ["unknown env 'sandbox'", "toolsandbox"]),
        ("experiment=tiny", ["unknown experiment 'tiny'", "smoke"]),
        ("metod=trace", ["unknown key 'metod'", "method", "budget"]),
        ("env.sute=embedded", ["unknown key 'env.sute'", "suite", "train_split"]),
        ("+budgets=3", ["unknown key 'budgets'", "budget"]),
        ("+env.extra=3", ["unknown key 'env.extra'", "augmentation"]),
        ("+method.gop=3", ["'gop'", "gap"]),
        ("env.suite=oficial", ["unknown value 'oficial'", "embedded", "env.suite"]),
        ("env.augmentation=scrambled", ["unknown value 'scrambled'", "scrambled_names"]),
        ("env.train_split=tarin", ["unknown value 'tarin'", "train_large"]),
        ("evaluation.split=tset", ["unknown value 'tset'", "test", "evaluation.split"]),
        ("sandbox.name=none", ["unknown value 'none'", "inline"]),
        ("tracker.name=mlflow", ["unknown value 'mlflow'", "jsonl, wandb"]),
        ("tracker=wandb tracker.mode=on", ["unknown value 'on'", "offline, online"]),
        ("budget=many", ["budget='many'", "a whole number from 0"]),
        ("budget=-1", ["budget=-1", "a whole number from 0"]),
        ("budget=1.5", ["budget=1.5", "a whole number"]),
        ("seed=true", ["seed=True", "a whole number"]),
        ("checkpoints=320", ["checkpoints=320", "a list"]),
        ("checkpoints=[-3]", ["checkpoints=-3", "from 0"]),
        ("policy.temperature=hot", ["policy.temperature='hot'", "a number from 0"]),
        ("method.gap=7", ["method.gap=7", "0 to 1"]),
        ("method=grpo method.reward=speed", ["unknown value 'speed'", "success"]),
        ("trainer=verll", ["unknown trainer 'verll'", "local"]),
        ("trainer.ranks=3", ["unknown key 'trainer.ranks'", "group_size"]),
        ("trainer.rank=0", ["trainer.rank=0", "from 1"]),
        ("trainer.decay=cosine", ["unknown value 'cosine'", "linear", "trainer.decay"]),
        ("model=hf", ["model.path", "must be given"]),
        ("policy=idle", ["policy=idle is scripted", "method=trace"]),
        ("env.train_split=test", ["protocol=held_out", "env.train_split=test", "protocol=paper"]),
        ("budget", ["could not be read", "budget"]),
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


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose([]).budget = 1  # type: ignore[misc]


def test_identity_ignores_where_and_keeps_what() -> None:
    here = identity(compose(SCRIPTED))
    assert here == identity(compose([*SCRIPTED, "run_dir=elsewhere"]))
    assert differences(here, identity(compose([*SCRIPTED, "seed=1", "env.suite=embedded"]))) == [
        "seed: 0 -> 1"
    ]


def test_identity_knows_the_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    overrides = ["method=base", "model=hf", f"model.path={tmp_path}"]
    one = identity(compose(overrides))
    (tmp_path / "model.safetensors").write_bytes(b"two")
    (changed,) = differences(one, identity(compose(overrides)))
    assert changed.startswith("model.sha256: ")


def test_the_paper_protocol_has_its_name() -> None:
    assert compose(["protocol=paper", "env.train_split=test"]).protocol == "paper"


def test_missing_field_is_named() -> None:
    with pytest.raises(UserError, match=r"`env` is missing"):
        build(Settings, {})


def test_help_and_cfg_speak_to_a_newcomer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for word in ("experiment=smoke", "trace_bench.show", "method: base", "budget: 640", "resumes"):
        assert word in text
    assert main(["method=base", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["method"] == {"name": "base"}


def test_help_needs_no_heavy_library() -> None:
    code = (
        "import sys; from trace_bench.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
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
