"""From the command line to checked settings. Hydra composes, this module validates and freezes.

Hydra's own errors are turned into `UserError`, so that a typo costs one line and not a traceback.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.types import to_json
from trace_bench.settings.schema import (
    GrpoSettings,
    ModelSettings,
    Settings,
    UntargetedSettings,
    build,
    parse,
)

NOT_IDENTITY = ("run_dir", "tracker", "experiment", "sandbox", "dry_run")
"""Settings that say where a run is written or how it is called, and do not change what it does."""

NOT_IDENTITY_OF_SERVERS = ("base_url", "key_env", "deadline", "retries", "concurrency")
"""The same for the settings of whoever asks a server: it may move in the middle of a run."""

ACTING = ("local", "openai")
"""Policies with a model behind them; the others are scripted."""


def conf_dir() -> Path:
    """The folder of the Hydra files: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "conf", package.parent / "conf"):
        if (place / "config.yaml").is_file():
            return place
    raise UserError(
        f"the settings files are missing: no conf/config.yaml in {package} or {package.parent}. "
        "Install trace_bench again."
    )


def launch(job: Callable[[Settings], int], argv: Sequence[str]) -> int:
    """Run `job` for the settings that `argv` describes (several with `-m`, side by side with
    `hydra/launcher=joblib` or `submitit_slurm`); the worst exit code.

    Raises UserError for everything that is wrong with `argv` itself.
    """
    import hydra

    codes: list[int] = []
    here = os.getpid()

    def task(cfg: Any) -> None:
        if os.getpid() != here:  # a launcher's worker: Hydra carries errors back, not `codes`
            job(validate(_plain(cfg)))
            return
        codes.append(_report(lambda: job(validate(_plain(cfg)))))

    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    with _readable_errors(), _arguments(argv):
        main(task)()
    return max(codes, default=0)


def compose(overrides: Sequence[str]) -> Settings:
    """Checked settings from overrides such as `method=grpo budget=64`, without a command line."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with _readable_errors():
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return validate(_plain(hydra_compose("config", list(overrides))))


def validate(data: Mapping[str, Any]) -> Settings:
    """Typed settings, the groups of methods and trainers checked by their owners."""
    settings = parse(data)
    method = _named(settings.method, "method", METHODS)
    trainer = _named(settings.trainer, "trainer", TRAINERS)
    settings = dataclasses.replace(settings, method=method, trainer=trainer)
    if settings.policy.name not in ACTING and method["name"] not in UNTRAINED:
        raise UserError(
            f"policy={settings.policy.name} is scripted and cannot be trained by "
            f"method={method['name']}. Change `policy` to local or openai, or `method` to base."
        )
    _check_roles(settings)
    return settings


def _check_roles(settings: Settings) -> None:
    """Roles that need one another, and a box for what a model writes."""
    llm, method = settings.llm, settings.method["name"]
    if method in ("trace", "single_capability"):
        if llm.analyst.by == "endpoint" and llm.generator.by == "program":
            raise UserError(
                "llm.analyst.by=endpoint finds capabilities that this project's generator has no "
                "tasks for. Set llm.generator.by=endpoint too, or llm.analyst.by=program."
            )
        boxed = settings.sandbox.name in ("docker", "auto") or settings.sandbox.allow_untrusted
        if llm.generator.by == "endpoint" and not boxed:
            raise UserError(
                f"llm.generator.by=endpoint writes programs, and sandbox={settings.sandbox.name} "
                "would run them with this user's rights. Set `sandbox` to docker (or, if you have "
                "read them, sandbox=process sandbox.allow_untrusted=true)."
            )


def identity(settings: Settings) -> dict[str, Any]:
    """All that influences the results, as plain data; its fingerprint names the run."""
    data = to_json(settings)
    for key in NOT_IDENTITY:
        data.pop(key)
    del data["llm"]["shared"]
    for group in (data["policy"], *data["llm"].values()):
        for key in NOT_IDENTITY_OF_SERVERS:
            group.pop(key, None)
    for key in NOT_IDENTITY_OF_CLUSTERS:
        data["trainer"].pop(key, None)
    data["llm"] = {r: d if d["by"] == "endpoint" else d["by"] for r, d in data["llm"].items()}
    acting = settings.policy.name in ACTING  # a scripted agent has no weights
    data["model"]["sha256"] = _weights_hash(settings.model) if acting else None
    return dict(data)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Keys in which two identities differ, each as `key: old -> new`."""
    before, after = dict(_flat(old)), dict(_flat(new))
    keys = sorted(before.keys() | after.keys())
    return [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in keys
        if before.get(key, "absent") != after.get(key, "absent")
    ]


def acting_model(settings: Settings) -> str:
    """What AgentSpec.model says: where the weights are, or the name of the scripted agent."""
    if settings.policy.name not in ACTING:
        return settings.policy.name
    return model_path(settings.model)


def served_name(model: ModelSettings) -> str:
    """What servers call the model."""
    return (model.path or model.name) if model.name == "hf" else model.name


def model_path(model: ModelSettings) -> str:
    """Where the model's weights and tokenizer are: a folder, or a name on the hub."""
    if model.path is not None or model.name != "tiny":
        return model.path or model.name
    path = Path(__file__).resolve().parents[1] / "tiny" / "model"
    if not (path / "config.json").is_file():
        raise UserError(
            f"the shipped model is missing in {path}. Build it with `python -m trace_bench.tiny "
            "build`, or name another one in `model.path`."
        )
    return str(path)


# -- the settings that others own -----------------------------------------------------------


def _of_base(values: Mapping[str, Any]) -> dict[str, Any]:
    if extra := [key for key in values if key != "name"]:
        raise unknown("key", f"method.{extra[0]}", ["name"], f"method.{extra[0]}")
    return {}


def _of_grpo(values: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in values.items() if key != "name"}
    return dataclasses.asdict(build(GrpoSettings, given, "method"))


def _of_saved(values: Mapping[str, Any]) -> dict[str, Any]:
    from trace_bench.methods import saved

    if extra := [key for key in values if key not in ("name", "agent", "sha256")]:
        raise unknown("key", f"method.{extra[0]}", ["name", "agent"], f"method.{extra[0]}")
    return saved.settings(values)


def _of_gepa(values: Mapping[str, Any]) -> dict[str, Any]:
    from trace_bench.methods.gepa.settings import GepaSettings

    given = {key: value for key, value in values.items() if key != "name"}
    return dataclasses.asdict(build(GepaSettings, given, "method"))


def _of_sft(values: Mapping[str, Any]) -> dict[str, Any]:
    from trace_bench.methods.sft.settings import SftSettings

    given = {key: value for key, value in values.items() if key != "name"}
    return dataclasses.asdict(build(SftSettings, given, "method"))


def _of_untargeted(values: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in values.items() if key != "name"}
    return dataclasses.asdict(build(UntargetedSettings, given, "method"))


def _of_trace(values: Mapping[str, Any]) -> dict[str, Any]:
    from trace_bench.methods.trace.settings import TraceSettings

    return dataclasses.asdict(TraceSettings.of(values))


def _of_local(values: Mapping[str, Any]) -> dict[str, Any]:
    from trace_bench.trainers.settings import TrainerSettings

    given = {key: value for key, value in values.items() if key != "name"}
    return dataclasses.asdict(build(TrainerSettings, given, "trainer"))


def _of_verl(values: Mapping[str, Any]) -> dict[str, Any]:
    from trace_bench.trainers.settings import VerlSettings

    given = {key: value for key, value in values.items() if key != "name"}
    return dataclasses.asdict(build(VerlSettings, given, "trainer"))


UNTRAINED = ("base", "saved")
"""Methods that change no agent, which is all that a scripted one can be put through."""

METHODS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "base": _of_base,
    "grpo": _of_grpo,
    "gepa": _of_gepa,
    "sft": _of_sft,
    "saved": _of_saved,
    "trace": _of_trace,
    "single_capability": _of_trace,
    "prompt_only": _of_trace,
    "untargeted": _of_untargeted,
}
TRAINERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "local": _of_local,
    "verl": _of_verl,
}


NOT_IDENTITY_OF_CLUSTERS = ("ray_address", "workers", "deadline", "stall", "restarts")
"""Settings of trainer=verl that say where and how patiently it is done."""


def _named(
    values: Mapping[str, Any],
    group: str,
    owners: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]],
) -> dict[str, Any]:
    name = values.get("name")
    if name not in owners:
        raise unknown(group, name, owners, group)
    return {"name": name, **owners[str(name)](values)}


# -- Hydra ------------------------------------------------------------------------------------


@contextmanager
def _arguments(argv: Sequence[str]) -> Iterator[None]:
    """`sys.argv` for Hydra, and errors raised instead of printed with a traceback."""
    before, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["trace_bench", *argv]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full


def _report(job: Callable[[], int]) -> int:
    """A user's mistake in one job of several is printed and does not stop the others."""
    try:
        return job()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


@contextmanager
def _readable_errors() -> Iterator[None]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _translate(error) from error


def _translate(error: Exception) -> UserError:
    """One line that names the key and what is allowed."""
    missing = getattr(error, "missing_cfg_file", None)
    if missing is not None and "/" in missing:
        group, choice = missing.rsplit("/", 1)
        return unknown(group, choice, getattr(error, "options", None) or (), group)
    for cause in _chain(error):
        node = getattr(cause, "parent_node", None)
        if getattr(cause, "key", None) is not None and isinstance(node, Mapping):
            key = getattr(cause, "full_key", None) or cause.key
            given = re.search(r"Could not override '([^']+)'", str(error))
            return unknown("key", given[1] if given else key, _keys(node), str(key))
    group_error = re.search(r"config group '([^']+)' does not exist", str(error))
    if group_error is not None:
        groups = sorted(p.name for p in conf_dir().iterdir() if p.is_dir() and p.name != "hydra")
        return unknown("group", group_error[1], groups, group_error[1])
    text = " ".join(str(error).split())
    return UserError(f"the command line could not be read: {text}")


def _chain(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__


def _keys(node: Mapping[str, Any]) -> list[str]:
    return [str(key) for key in node if key != "hydra"]


def _plain(cfg: Any) -> dict[str, Any]:
    """The composed settings as plain data, interpolations resolved."""
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue

    try:
        data = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(
            f"the setting `{error.full_key}` must be given, e.g. on the command line "
            f"as {error.full_key}=<value>."
        ) from error
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items() if key != "hydra"}


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _weights_hash(model: ModelSettings) -> str | None:
    """Hash of local weights, so that a rebuilt model is another run; None for a hub name."""
    import hashlib

    folder = Path(model_path(model))
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]
