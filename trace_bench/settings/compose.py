"""From the command line to checked settings, composed by Hydra, whose own errors become a
`UserError`: a typo gives one line. Entry points of installed packages are choices like the files in
conf/, and so are the files in a folder given by `--config-dir`."""

from __future__ import annotations

import functools
import json
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_bench.core.command import complain, take
from trace_bench.core.errors import UserError, unknown
from trace_bench.settings import choices
from trace_bench.settings.choices import GROUPS, conf_dir, fill, nested, open_ended
from trace_bench.settings.models import settled
from trace_bench.settings.registry import KINDS
from trace_bench.settings.schema import Settings


def launch(job: Callable[[Settings], int], argv: Sequence[str]) -> int:
    """Runs `job` for the settings in `argv` (several with `-m`, in parallel with a launcher).
    Returns the highest exit code. Raises UserError for any error in `argv` itself."""
    import hydra
    from hydra._internal.utils import get_args_parser

    codes: list[int] = []
    bugs: list[Exception] = []
    here = os.getpid()

    def task(cfg: Any) -> None:
        """One of several jobs, which a UserError of another does not stop."""
        within = os.getpid() == here  # else a launcher's worker, which returns errors alone
        try:
            code = job(settled(_plain(cfg)))
        except UserError as error:
            if not within:
                raise
            code = complain(error)
        except Exception as error:
            if within:  # not for Hydra, nor for the readers of its errors
                bugs.append(error)
                return
            traceback.print_exc()
            raise UserError(
                f"the run ended with {type(error).__name__}: {error}; its output says where."
            ) from None
        codes.append(code)
        if code and not within:
            raise UserError(f"the run ended with exit code {code}; its output says why.")

    rest = list(argv)
    if more := config_dir_of(rest):
        choices.check_folder(more)
    if not any(re.match(r"[+~]*hydra|-", word) for word in rest):
        return job(compose(rest, more))  # Hydra's own way composes twice
    for flag in (word.partition("=")[0] for word in rest if word.startswith("--")):
        if flag not in get_args_parser()._option_string_actions:
            name = flag[2:].replace("-", "_")
            raise UserError(
                f"{flag} is no option. A setting has no dashes: {name}=VALUE. Options: --help, "
                "--version, --config-dir FOLDER, --cfg job, -m (several runs)."
            )
    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    fill()
    with _readable_errors(), _arguments(_opened(argv)):
        main(task)()
    if bugs:
        raise bugs[0]
    return max(codes, default=0)


def compose(words: Sequence[str], config_dir: Path | None = None) -> Settings:
    """Checked settings from words such as `method=grpo budget=64`, which may name a folder of
    settings files (`--config-dir`) too."""
    rest = list(words)
    place = config_dir_of(rest) or config_dir
    return settled(compose_plain([rest], place)[0])


def compose_all(overrides: Sequence[Sequence[str]]) -> list[Settings]:
    """The settings of many runs. Each distinct choice of config files is composed only once."""
    return [settled(data) for data in compose_plain(overrides)]


def compose_plain(
    overrides: Sequence[Sequence[str]], config_dir: Path | None = None, finished: bool = True
) -> list[dict[str, Any]]:
    """The composed settings as plain data, not yet checked; with `finished` nothing that must be
    given may be missing. Values are set as Hydra does on a command line, which offers it only as an
    inner function: composing everything again takes half a second for each run of a sweep."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if config_dir is not None:
        choices.check_folder(config_dir)
    place = [] if config_dir is None else [f"hydra.searchpath=[file://{config_dir.resolve()}]"]
    written = _written(conf_dir(), *([] if config_dir is None else [config_dir.resolve()]))
    out, parser = [], OverridesParser.create()
    with _readable_errors():
        for run in overrides:
            files, values = _sorted_out(_opened(run), config_dir)
            parsed = parser.parse_overrides(values)
            if several := [str(o.input_line) for o in parsed if o.is_sweep_override()]:
                raise _several(several[0])
            cfg = pickle.loads(_composed((*files, *place), written))
            ConfigLoaderImpl._apply_overrides_to_config(parsed, cfg)
            out.append(_plain(cfg, finished))
    return out


def _written(*folders: Path) -> tuple[tuple[Path, int], ...]:
    files = [p for f in folders for p in sorted(f.glob("**/*.yaml")) if p.is_file()]
    return tuple((p, p.stat().st_mtime_ns) for p in files)


@functools.lru_cache(maxsize=256)
def _composed(files: tuple[str, ...], written: tuple[tuple[Path, int], ...]) -> bytes:
    """What Hydra composes of the files chosen, as they were `written`; pickled, which is five times
    as quick as a deep copy."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    fill()
    others = GlobalHydra.instance().hydra  # the caller, such as a notebook, may use Hydra too
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return pickle.dumps(hydra_compose("config", [*files]))
    finally:
        GlobalHydra.instance().hydra = others  # Hydra has replaced the instance meanwhile


def _sorted_out(
    overrides: Sequence[str], config_dir: Path | None
) -> tuple[tuple[str, ...], list[str]]:
    """Splits overrides into those that choose a file and those that set a value."""
    groups = {*_groups(), *(p.name for p in (config_dir or conf_dir()).iterdir() if p.is_dir())}
    keys = {o: o.partition("=")[0].lstrip("+~") for o in overrides}
    files = [o for o, key in keys.items() if key in groups or "/" in key or "@" in key]
    return tuple(files), [o for o in overrides if o not in files]


def config_dir_of(words: list[str]) -> Path | None:
    """Removes `--config-dir FOLDER` from the words; the folder."""
    folder = take(words, "--config-dir") or take(words, "-cd")
    return Path(folder) if folder else None


_NAMES = re.compile(r"(?!(?:null|true|false)$)[A-Za-z_](\w*(,\w+)*|[\w.]*:\w[\w.]*)")


def _opened(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra wants them: `++` before a setting that is in none of our files, such as
    `env.options.size=40`, `method.route.weight=0.2` (of what a name chooses) or `env.args.size=40`
    (of keys of any name); `method.route=soft` is `method.route.name=soft`; `GROUP=custom` before a
    factory whose group neither a choice nor an experiment sets; no factory that is null. Raises
    UserError."""
    overrides = [o for o in overrides if not re.fullmatch(r"\w+\.factory=(null)?", o)]
    names = {o.partition("=")[0].lstrip("+") for o in overrides}
    heads = {name.rpartition(".")[0] for name in names}
    chosen = names & {"experiment", "--config-name", "-cn"}
    out = []
    for override in overrides:
        key, equals, value = override.partition("=")
        name = key.lstrip("+")
        group, _, below = name.partition(".")
        if below == "factory" and group in KINDS and not chosen and group not in names:
            out.append(f"{group}=custom")
        _refuse(override, name if equals else "")
        option = below.startswith("options.") and group in KINDS
        setting, _, deeper = below.removeprefix("options.").partition(".")
        if setting and not deeper and _NAMES.fullmatch(value):
            chooses = name in heads if option else setting in nested(group)
            key += ".name" if chooses else ""
        opened = option or ((deeper or key.endswith(".name")) and setting in nested(group))
        opened = opened or ((deeper or value[:1] == "{") and setting in open_ended(group))
        plus = "++" if equals and opened and key == key.lstrip("+~") else ""
        out.append(f"{plus}{key}{equals}{value}")
    return out


def _refuse(override: str, name: str) -> None:
    """Raises UserError for what Hydra would not read as a setting's value."""
    choice = override.partition("=")[2]
    if "=" in override and not name.strip("~ "):
        raise UserError(f"{override!r} names no setting; {_FORM}")
    if name in _groups() and (choice[:1] in ("", *"/[{") or ".." in choice.split("/")):
        raise UserError(
            f"{name}={choice[:60]} is not allowed: `{name}` takes the name of one of its files "
            f"(your own: --config-dir FOLDER), not a path or a list. Change `{name}`."
        )
    if name in _groups() and _NO_TEXT.fullmatch(choice.strip("'")):
        raise UserError(f"{override} is not allowed: leave `{name}` out, or name one of its files.")


_NO_TEXT = re.compile(r"(?i)null|true|false|[+-]?(inf|nan|[\d_.]+(e.*)?)")
_FORM = (
    "allowed: setting=value, such as budget=640. A value with spaces, signs or letters beyond "
    "a to z needs quotes within the quotes of the shell: \"run_dir='my runs'\"."
)


_KEY = re.compile(r"[ -&(-~]+")
_PLAIN = re.compile(r"[\w./:+-]+", re.ASCII)  # needs no quotes on a command line


def word(value: Any) -> str:
    """A value in Hydra's notation."""
    text = str(value) if isinstance(value, str | Path) else ""
    return text if _PLAIN.fullmatch(text) and not _NO_TEXT.fullmatch(text) else _quoted(value)


def _quoted(value: Any) -> str:
    """The same, with every text in quotes, within which a quote and a reference are escaped, and so
    are the backslashes before these or before the end. Keys have no quotes in Hydra's notation: a
    UserError for one that it would take for something else than this text."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or _NO_TEXT.fullmatch(key) or not _KEY.fullmatch(key):
                raise UserError(
                    f"the key {key!r} is not allowed; allowed: ASCII text without ' "
                    "that is no number, true, false or null. Change the key in the value given."
                )
        keys = [re.sub(r"[\\()\[\]{}:=,\s]", r"\\\g<0>", key) for key in value]
        pairs = zip(keys, map(_quoted, value.values()), strict=True)
        return "{" + ",".join(f"{key}:{inner}" for key, inner in pairs) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_quoted, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    escaped = re.sub(r"(\\*)('|\$\{|\Z)", r"\1\1\2", str(value))
    return "'" + re.sub(r"'|\$\{", r"\\\g<0>", escaped) + "'"


# -- Hydra ------------------------------------------------------------------------------------


@contextmanager
def _arguments(argv: Sequence[str]) -> Iterator[None]:
    """Sets `sys.argv` for Hydra and makes it raise errors instead of printing a traceback."""
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


@contextmanager
def _readable_errors() -> Iterator[None]:
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _translate(error) from error
    except RecursionError as error:
        raise UserError("a setting is nested too deeply to be read. Change it.") from error
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise UserError(
            f"a settings file cannot be read ({why}). Change that file, which lies in the folder "
            "of --config-dir unless the installation is damaged."
        ) from error
    except ValueError as error:
        if type(error) is not ValueError:  # Hydra's answer to flags that exclude each other
            raise
        raise UserError(f"the command line could not be read: {error}") from error


def _translate(error: Exception) -> UserError:
    """Hydra's error as one line that names the key and what is allowed."""
    from hydra.errors import OverrideParseException
    from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

    if isinstance(error, OverrideParseException):
        own = f" Did you mean {_own('env', str(error.override))}?"
        guess = "" if ".factory=module:" in own else own
        return UserError(f"{error.override!r} cannot be read; {_FORM}{guess}")
    if several := re.search(
        r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'\s", str(error)
    ):
        return _several(several[1])
    if isinstance(error, MissingMandatoryValue):
        key = error.full_key
        return UserError(
            f"the setting `{key}` must be given, e.g. on the command line as {key}=<value>."
        )
    missing = getattr(error, "missing_cfg_file", None)
    if missing is not None and "/" in missing:
        at, choice = missing.rsplit("/", 1)
        group, _, whole = missing.partition("/")
        if at == "hydra/launcher" and choice in ("joblib", "submitit_local", "submitit_slurm"):
            return UserError(
                f"hydra/launcher={choice} needs a package that is not installed: pip install "
                "'.[launchers]', or leave `hydra/launcher` out."
            )
        allowed = getattr(error, "options", None) or ()
        if group not in KINDS:
            return unknown(at, choice, allowed, at)
        others = [f"{g}={one}" for g in GROUPS if g != group for one in choices.of(g)]
        refusal = unknown(group, whole, allowed, group, others)
        return UserError(f"{refusal} One of your own: `{_own(group, whole)}`.")
    for cause in _chain(error):
        if isinstance(cause, InterpolationResolutionError):
            why = str(cause).partition("\n")[0]
            return UserError(
                f"the setting `{cause.full_key}` refers to what does not exist ({why}). Change "
                f"`{cause.full_key}`."
            )
        node = getattr(cause, "parent_node", None)
        if getattr(cause, "key", None) is not None and isinstance(node, Mapping):
            key = str(getattr(cause, "full_key", None) or cause.key)
            override = re.search(r"Could not override '([^']+)'", str(error))
            group, _, last = (override[1] if override else "").partition(".")
            if group in KINDS and last == "factory":
                return UserError(
                    f"`{group}.factory` is a setting of `{group}=custom` alone, and another choice "
                    f"is made here. Change `{group}`."
                )
            named = override[1] if override else key
            keys = [str(k) for k in node if k != "hydra"]
            return unknown("key", named, keys, key, _elsewhere(named, node))
    group_error = re.search(r"config group '([^']+)' does not exist", str(error))
    if group_error is not None:
        return unknown("group", group_error[1], _groups(), group_error[1])
    text = " ".join(str(error).split())
    return UserError(f"the command line could not be read: {text}")


def _elsewhere(named: str, node: Mapping[Any, Any]) -> list[str]:
    """Where the last word of a key is known that its group, `node`, does not have."""
    group, _, last = named.rpartition(".")
    if "budget" in node:  # all settings: those of the groups, and what they choose among
        data = _plain(node, finished=False)
        below = [f"{g}.{key}" for g, keys in data.items() if isinstance(keys, dict) for key in keys]
        return [*below, *(f"{g}={one}" for g in GROUPS for one in choices.of(g))]
    if "options" in node:
        return [f"{group}.options.{last}"]
    there = choices.offered(group) if group in GROUPS else ()
    return [f"{group}={c} {named}" for c in there if last in choices.defaults(group, c)]


def _own(group: str, typed: str) -> str:
    """The settings for a part of your own, whose file (desk, desk.py:Suite), folder or name on the
    hub was typed as a choice."""
    if group == "model" and "/" in typed:
        return f"model=hf model.path={typed}"
    place, _, attribute = typed.partition(":")
    file = Path(f"{place.removesuffix('.py')}.py")
    if not file.is_file():
        return f"{group}.factory=module:attribute"
    kind = rf"^class (\w+)\(.*\b{KINDS[group].__name__}\b"
    inherits = re.search(kind, file.read_text(errors="replace"), re.MULTILINE)
    module = ".".join(file.with_suffix("").parts)
    return f"{group}.factory={module}:{attribute or (inherits[1] if inherits else 'attribute')}"


def _several(override: str) -> UserError:
    key, _, value = override.partition("=")
    return UserError(
        f"{override} is several values; allowed: one, a list ({key}=[{value}]) or a text with "
        f"commas (\"{key}='{value}'\"). Change `{key}`, or start several runs: python -m "
        f"trace_bench -m {override}."
    )


def _groups() -> list[str]:
    return sorted({*GROUPS, "experiment"})


def _chain(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__


def _plain(cfg: Any, finished: bool = True) -> dict[str, Any]:
    from omegaconf import OmegaConf

    with _readable_errors():
        data = OmegaConf.to_container(cfg, resolve=finished, throw_on_missing=finished)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items() if key != "hydra"}
