"""Settings: what is composed, what is refused and with which words."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from trace_bench.__main__ import main
from trace_bench.core.checked import build
from trace_bench.core.errors import UserError
from trace_bench.core.types import flat
from trace_bench.settings.choices import GROUPS, conf_dir, defaults, files, fill, offered
from trace_bench.settings.compose import compose, compose_all, compose_plain, word
from trace_bench.settings.identity import differences, identity, parts_of
from trace_bench.settings.models import settled
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
    """A key repeats one if what its file rests on has the same value."""
    repeated, count = [], 0
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        fill()
        below = functools.cache(lambda chosen: hydra_compose("config", [*chosen]))
        for path in sorted(conf_dir().glob("*/*.yaml")):
            text, group = path.read_text(encoding="utf-8"), path.parent.name
            data = yaml.safe_load(text)
            listed = [d for d in data.pop("defaults", ()) if d != "_self_"]
            named = [d if isinstance(d, dict) else {group: d} for d in listed]
            chosen = {k.removeprefix("override /"): v for d in named for k, v in d.items()}
            part = str(chosen.get(group)).removeprefix("part/")
            if chosen.get(group) == f"part/{part}":  # Hydra would take a quarter of a second
                rests = OmegaConf.create({**below(()), group: defaults(group, part, named=False)})
            else:
                rests = below(tuple(f"{k}={v}" for k, v in chosen.items()))
            inner = group != "experiment" and "@package _global_" not in text
            for key, value in flat(data):
                count += 1
                name = f"{group}.{key}" if inner else key
                if OmegaConf.select(rests, name, default=...) == value:
                    repeated.append(f"{path.name}: {key}")
    assert count > 60 and not repeated


OWN_PARTS = {
    "env": "trace_bench.envs.toolsandbox.scenarios.suite:EmbeddedSuite",
    "method": "trace_bench.methods.grpo:Base",
    "policy": "trace_bench.policies.scripted:IdlePolicy",
    "trainer": "trace_bench.trainers.local:LocalTrainer",
    "tracker": "trace_bench.runner.trackers:Silent",
    "model": "trace_bench.tiny:shipped",
}


@pytest.mark.slow
def test_every_choice_of_every_group_composes() -> None:
    there = "http://127.0.0.1:1/v1"
    needed = {
        "model=hf": ["model.path=somewhere"],
        "model=served": ["model.name=Some/Model"],
        "env=mcp": [f"env.url={there}", "env.tasks=shop:tasks", "env.scorer=shop:score"],
        "env=openenv": [f"env.url={there}"],
        "env=verifiers": ["env.taskset=shop"],
        "policy=openai": [f"policy.base_url={there}"],
        **{f"{group}=custom": [f"{group}.factory={OWN_PARTS[group]}"] for group in OWN_PARTS},
        "llm=endpoint": ["sandbox=docker", f"llm.shared.base_url={there}", "llm.shared.model=M"],
    }
    choices = [f"{g}={name}" for g in GROUPS for name in sorted({*files(g), *offered(g)})]
    choices += [f"experiment={file.stem}" for file in (conf_dir() / "experiment").glob("*.yaml")]
    assert len(compose_all([[c, *needed.get(c, [])] for c in choices])) == len(choices) > 30


@functools.cache
def composed() -> dict[str, Any]:
    (data,) = compose_plain([[]])
    return data


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("trainer.learning_rate=.inf", ["trainer.learning_rate=inf", "a finite number"]),
        ("budget=many", ["budget='many'", "a whole number from 0 to 10000000"]),
        ("budget=-1", ["budget=-1", "a whole number from 0", "`budget`"]),
        ("budget=1.5", ["budget=1.5", "a whole number"]),
        ("seed=true", ["seed=True", "a whole number"]),
        ("checkpoints=320", ["checkpoints=320", "a list"]),
        ("checkpoints=[-3]", ["checkpoints[0]=-3", "from 0"]),
        ("policy.eval_temperature=hot", ["policy.eval_temperature='hot'", "a number from 0"]),
        ("max_lost=2", ["max_lost=2", "from 0 to 1", "`max_lost`"]),
        ("method.gap=7", ["method.gap=7", "0 to 1"]),
        ("method.gop=3", ["unknown key 'method.gop'", "gap"]),
        ("trainer.rank=0", ["trainer.rank=0", "from 1"]),
        ("trainer.decay=cosine", ["unknown value 'cosine'", "linear", "trainer.decay"]),
        ("llm.judge.by=me", ["unknown value 'me'", "program, endpoint", "llm.judge.by"]),
        ("sandbox.name=none", ["unknown value 'none'", "inline"]),
        ("tracker.name=mlflow", ["unknown tracker 'mlflow'", "jsonl, wandb, custom"]),
        ("method.name=mine", ["unknown method 'mine'", "custom (with method.factory=module:attr"]),
        ("trainer.name=custom", ["trainer=custom needs trainer.factory"]),
        ("env.suite=oficial", ["unknown suite of toolsandbox 'oficial'", "embedded", "env.suite"]),
        ("env.train_split=test", ["protocol=held_out", "env.train_split=test", "protocol=paper"]),
    ],
)
def test_a_wrong_value_is_one_line(setting: str, words: list[str]) -> None:
    name, _, text = setting.partition("=")
    data = copy.deepcopy(composed())
    *groups, key = name.split(".")
    inner = functools.reduce(operator.getitem, groups, data)
    inner[key] = yaml.safe_load(text)
    with pytest.raises(UserError) as caught:
        settled(data)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("env=sandbox", ["unknown env 'sandbox'", "toolsandbox", "`env.factory=module:attribute`"]),
        (
            "env=toolsandbox env.factory=trace_bench.envs.bfcl.suite:BfclSuite",
            ["`env.factory` is a setting of `env=custom` alone", "Change `env`"],
        ),
        ("experiment=tiny", ["unknown experiment 'tiny'", "smoke"]),
        ("trainer.lr=0.1", ["unknown key 'trainer.lr'", "Did you mean learning_rate?"]),
        ("+budgets=3", ["unknown key 'budgets'", "budget"]),
        ("method=custom", ["method=custom needs method.factory"]),
        ("+method.options.gap=1", ["`method.gap` and `method.options.gap` are the same setting"]),
        ("model=hf", ["model.path", "must be given"]),
        ("seed=0,1", ["seed=0,1 is several values", "-m seed=0,1", "`seed`"]),
        ("model.path=a,b", ["model.path=a,b is several values", "model.path='a,b'"]),
        ("method=base,grpo", ["method=base,grpo is several values", "`method`"]),
        ("budget=range(1,3)", ["budget=range(1,3) is several values"]),
    ],
)
def test_a_wrong_override_is_one_line(override: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        compose(override.split())
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "2026", "1e5", "-5", "1_0", "null", "True", "inf", "~", "a,b", "[1]", "{a: 1}", "it's",
        "${seed}", "a\\${seed}", "a\\", " x", "", "a=b", "\u00e9", "a\nb", "0x10", "12:30",
    ],
)  # fmt: skip
def test_a_text_from_python_stays_that_text(text: str) -> None:
    (data,) = compose_plain([[f"run_dir={word(text)}", f"checkpoints={word([{'a': text}])}"]])
    assert (data["run_dir"], data["checkpoints"]) == (text, [{"a": text}])


@pytest.mark.parametrize("key", ["2026", "true", "null", "1e3", "é", "a'b", 7, None])
def test_a_key_that_would_become_something_else_is_refused(key: Any) -> None:
    with pytest.raises(UserError, match="is not allowed; allowed: ASCII text"):
        word({key: 1})


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


@pytest.mark.parametrize("flags", ["--config-dir .", "--cfg job", "--config-dir=. -m"])
def test_a_factory_is_understood_behind_flags(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code = main([*flags.split(), "method.factory=nowhere:Mine", "seed=0"])
    found = capfd.readouterr()
    assert "the module nowhere cannot be imported" in found.err or "nowhere:Mine" in found.out
    assert code == 2 or flags == "--cfg job"


def test_a_file_that_was_changed_is_composed_again(tmp_path: Path) -> None:
    place = tmp_path / "experiment"
    place.mkdir()
    for budget in (64, 128):
        (place / "own.yaml").write_text(f"# @package _global_\nbudget: {budget}\n")
        assert compose(["experiment=own"], tmp_path).budget == budget
    (place / "own.yaml").unlink()
    with pytest.raises(UserError, match="unknown experiment 'own'"):
        compose(["experiment=own"], tmp_path)


def test_no_factory_is_no_choice_and_settings_are_frozen() -> None:
    settings = compose(["env.factory=null"])
    assert settings.env.name == "toolsandbox"
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.budget = 1  # type: ignore[misc]


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
        ["method=grpo", "budget=640", "trainer.rank=8", "checkpoints=[1,2]"],
        ["method=trace", "env=tau2", "env.domain=retail", "evaluation.split=base"],
        ["experiment=smoke", "seed=4"],
    ]
    assert compose_all(runs) == [compose(run) for run in runs]


def test_a_setting_with_keys_of_any_name_takes_them() -> None:
    named = ["env.args.size=2", "env.splits={dev: {part: new}}"]
    options = compose(["env=verifiers", "env.taskset=shop", *named]).env.options
    assert options["args"] == {"size": 2} and options["splits"] == {"dev": {"part": "new"}}


def test_missing_field_is_named() -> None:
    with pytest.raises(UserError, match=r"`env` is missing"):
        build(Settings, {})


def test_help_and_cfg_speak_to_a_newcomer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for words in ("experiment=smoke", "gepa, grpo", "budget=640", "resumes"):
        assert words in text
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


@pytest.mark.slow
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
