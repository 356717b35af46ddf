"""The settings that a class or a function declares by its annotations (`Annotated[int, Meta(ge=1)]`
is a number with a range), and their values from plain data, each checked once (`core.decode`). A
wrong one raises a UserError that names the key, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types as pytypes
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from trace_bench.core.decode import Unreadable, Unsuitable, alternatives, brief, convert, fits
from trace_bench.core.errors import UserError, not_allowed, unknown
from trace_bench.core.types import to_json

T = TypeVar("T")
_MISSING = inspect.Parameter.empty
_UNRESOLVED = object()  # an annotation that names no type here

PLACE = {"identity": False}
"""Field metadata of a setting that affects no result, so that it is not in a run's identity."""
BY_MODEL = {"by_model": True}
"""Field metadata of a setting that the model decides where it is null in what was composed
(`settings.models`); the default is that of a model of a million parameters."""


def at_servers(value: Any) -> dict[str, Any]:
    """Field metadata: the default of a method's setting at servers (`settings.models`)."""
    return {"at_servers": value}


@dataclass(frozen=True)
class Parameter:
    """One setting of a class or function: its annotation, default and a field's metadata."""

    hint: Any
    default: Any = _MISSING
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def required(self) -> bool:
        return self.default is _MISSING


class Chosen:
    """What a name chooses from an open set: the settings dataclass of each choice inherits a class
    that inherits this, by which a field is annotated. `source`: where a choice comes from."""

    source: ClassVar[str] = ""

    @classmethod
    def offered(cls) -> Mapping[str, type]:
        raise NotImplementedError


def identifies(parameter: Parameter) -> bool:
    """Whether a setting is part of a run's identity."""
    return bool(parameter.metadata.get("identity", True))


def identifying(settings: Any, without: Container[str] = ()) -> dict[str, Any]:
    """The settings of a dataclass that are part of a run's identity, as plain data."""
    declared = parameters(type(settings))
    named = {n: v for n, v in vars(settings).items() if n not in without}
    return {n: to_json(v) for n, v in named.items() if identifies(declared[n])}


def build(cls: type[T], data: Any, path: str = "") -> T:
    """An instance of the dataclass `cls` from plain data. `path` is the settings' group."""
    if not isinstance(data, Mapping):
        raise UserError(f"`{path}` is {data!r}; allowed: a group of settings.")
    return cls(**arguments(parameters(cls), data, path))


def arguments(
    declared: Mapping[str, Parameter], data: Mapping[str, Any], path: str, open_ended: bool = False
) -> dict[str, Any]:
    """The data as checked keyword arguments; settings left at their default are omitted. Raises
    UserError for unknown keys, unless the callable takes any (`open_ended`)."""
    others = {key: value for key, value in data.items() if key not in declared}
    if others and not open_ended:
        where = _join(path, str(next(iter(others))))
        raise unknown("key", where, declared, where)
    out: dict[str, Any] = {}
    for name, parameter in declared.items():
        if name in data:
            out[name] = _value(parameter, data[name], _join(path, name))
        elif parameter.required:
            raise UserError(f"the setting `{_join(path, name)}` is missing.")
    return out | others


def parameters(target: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Parameters by name. An annotation for type checkers only, unresolved here, counts as Any; of
    a dataclass, whose fields are checked by them, it is a UserError."""
    if not inspect.isclass(target):
        return _parameters(target)
    of_class: Callable[..., Mapping[str, Parameter]] = _of_class
    return of_class(target)


def choices(hint: Any) -> Mapping[str, type]:
    """What an annotation lets a name choose: of a `Chosen`, all that it offers; of dataclasses that
    each declare `name: Literal[...]`, the class by each of its names; else nothing."""
    if isinstance(hint, type) and issubclass(hint, Chosen):
        return hint.offered()
    out: dict[str, type] = {}
    for cls in alternatives(hint):
        if cls is type(None):
            continue
        named = parameters(cls).get("name") if _is_dataclass(cls) else None
        if named is None or get_origin(named.hint) is not Literal:
            return {}
        out |= dict.fromkeys(get_args(named.hint), cls)
    return out


def _parameters(target: Callable[..., Any]) -> Mapping[str, Parameter]:
    declaring: Any = target
    fields = {f.name: f for f in dataclasses.fields(declaring)} if _is_dataclass(declaring) else {}
    out = {}
    for name, p in _signature(target).items():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        default, field = p.default, fields.get(name)
        if field is not None and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        home = _home(target, name)
        hint = _hint(p.annotation, home)
        if field is not None and hint is _UNRESOLVED:
            where = f"{declaring.__module__}.{declaring.__name__}.{name}"
            raise UserError(
                f"the setting {where} is annotated {p.annotation!r}, which is no type in "
                f"{home.get('__name__')}; allowed: a type that the module imports when it runs, "
                f"not for type checkers alone. Change the annotation of `{name}`."
            )
        hint = Any if hint is _UNRESOLVED else hint
        out[name] = Parameter(hint, default, dict(field.metadata) if field is not None else {})
    return out


_of_class = functools.cache(_parameters)  # a class keeps its parameters


def returns(function: Callable[..., Any]) -> type | None:
    """The class in a function's return annotation; None if it is not a class or not resolvable."""
    hint = _hint(inspect.signature(function).return_annotation, _home(function, "return"))
    return hint if inspect.isclass(hint) else None


def takes_any(target: Callable[..., Any]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in _signature(target).values())


def _signature(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):  # some built-in classes have none
        return {}


def _home(target: Any, name: str) -> Mapping[str, Any]:
    """The names that an annotation may use: those of the module that defines the target; of a field
    that a dataclass inherits, those of the module that declares it."""
    if inspect.isclass(target):
        written = not _is_dataclass(target)  # its __init__ was written, not made from the fields
        for cls in target.__mro__:
            annotated = name in vars(cls).get("__annotations__", {})
            if annotated or (written and "__init__" in vars(cls)):
                return vars(sys.modules.get(cls.__module__, pytypes.ModuleType("none")))
    inner = target.func if isinstance(target, functools.partial) else target
    inner = inspect.unwrap(inner)
    if inspect.ismethod(inner):
        inner = inner.__func__
    return inner.__globals__ if inspect.isfunction(inner) else {}


def _hint(annotation: Any, names: Mapping[str, Any]) -> Any:
    if annotation is _MISSING:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(names))
    except Exception:  # a name for type checkers only, or no annotation at all
        return _UNRESOLVED


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and isinstance(value, type)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _value(parameter: Parameter, value: Any, path: str) -> Any:
    hint = parameter.hint
    groups = [one for one in alternatives(hint) if _is_dataclass(one)]
    if groups and isinstance(value, hint):
        return value
    if offered := choices(hint):
        return _chosen(offered, value, parameter.default, path)
    if groups:
        return build(groups[0], value, path)
    value = _as_declared(hint, value)
    try:
        value = convert(value, hint)
    except TypeError:  # of an annotation that says nothing about plain data
        pass
    except ModuleNotFoundError:  # msgspec, in a worker: its host has checked the settings
        pass
    except Unsuitable as error:
        if error.names and not error.place:
            raise unknown("value", value, error.names, path) from error
        raise not_allowed(f"{path}{error.place}", brief(error.value), error.allowed) from error
    except Unreadable as error:
        raise UserError(f"{path}: {error}. Change `{path}`.") from error
    if isinstance(value, int | float) and not fits(value):
        raise not_allowed(path, brief(value), "a finite number")
    return value


def _as_declared(hint: Any, value: Any) -> Any:
    """The value as a path or as a tuple where the annotation names that alone."""
    kinds = {get_origin(one) or one for one in alternatives(hint)} - {type(None)}
    if kinds == {Path} and isinstance(value, str):
        return Path(value)
    if kinds == {tuple} and isinstance(value, str | list):
        return (value,) if isinstance(value, str) else tuple(value)
    return value


def _chosen(classes: Mapping[str, type], setting: Any, default: Any, path: str) -> Any:
    """The dataclass that `setting` names: "soft", or {"name": "soft", ...} with settings of its
    own. What is left out, even the name, is as in the field's default."""
    if not isinstance(setting, Mapping):
        setting = {"name": setting}
    held = vars(default) if dataclasses.is_dataclass(default) else {}
    name = setting.get("name", held.get("name", ""))
    if not isinstance(name, str) or name not in classes:
        raise unknown("value", name, classes, path)
    cls = classes[name]
    for key in setting.keys() - parameters(cls).keys():
        owners = [n for n, other in classes.items() if key in parameters(other)]
        if owners:
            allowed = ", ".join(n for n in parameters(cls) if n != "name")
            raise UserError(
                f"`{path}.{key}` is a setting of {path}={' or '.join(owners)}, and {path}={name} "
                f"is chosen; allowed there: {allowed}. Change `{path}`."
            )
    same = held if type(default) is cls else {}
    return build(cls, {**same, **setting, "name": name}, path)
