"""Factories: looks up "module:attribute", a class, a function or a finished object, and builds an
object from it. The settings of a class or function are its keyword parameters, or the fields of a
dataclass when it has one parameter of such a type. A parameter annotated `RunContext` receives the
facts of the run and is no setting. Needs only the standard library, as inside a sandbox."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trace_bench.core import checked
from trace_bench.core.errors import TraceBenchError, UserError, attempt, meant, not_allowed
from trace_bench.core.protocols import RunContext, missing
from trace_bench.core.text import described
from trace_bench.core.types import to_json

T = TypeVar("T")


@dataclass(frozen=True)
class Factory:
    """A class, function or object to build a part from. `where`: the setting that names it
    ("env.factory"). `text`: its value ("desk:suite"). `importable`: so, by another process."""

    target: Any
    where: str
    text: str
    importable: bool = True

    @property
    def finished(self) -> bool:
        """Whether the attribute is a finished object rather than a class or function."""
        target = self.target
        return not (isinstance(target, type | partial) or inspect.isroutine(target))

    @property
    def declared(self) -> Any:
        """What says before anything is built what the part can do: the class, that of a finished
        object, or the one in the function's return annotation, None without one."""
        if inspect.isroutine(self.target):
            return checked.returns(self.target)
        return type(self.target) if self.finished else self.target

    def settings(self, data: Mapping[str, Any], group: str) -> dict[str, Any]:
        """All settings as plain data, checked, with defaults filled in.
        Raises UserError naming the key, the value and what is allowed."""
        if self.finished and data:
            raise UserError(
                f"{self.where}={self.text} is an object, which takes no options; given: "
                f"{', '.join(map(str, data))}. Name a class or a function, or leave "
                f"`{group}.options` empty."
            )
        cls, declared = self._declared()
        where = group if self.text.startswith("trace_bench.") else f"{group}.options"
        if cls is not None:
            return dict(to_json(checked.build(cls, data, where)))
        values = checked.arguments(declared, data, where, checked.takes_any(self.target))
        defaults = {n: p.default for n, p in declared.items() if n not in values}
        return dict(to_json({**defaults, **values}))

    @property
    def declares(self) -> Any:
        """What declares its settings: a dataclass, or the class or function itself."""
        return self._declared()[0] or self.target

    def parameters(self) -> Mapping[str, checked.Parameter]:
        cls, declared = self._declared()
        return declared if cls is None else checked.parameters(cls)

    def identity(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the settings `options`, as plain data, that are part of a run's identity."""
        there = self.parameters()
        return {k: v for k, v in options.items() if k not in there or checked.identifies(there[k])}

    def make(self, options: Mapping[str, Any], run: RunContext, group: str, kind: type) -> Any:
        """Builds the object. Raises UserError if it is no complete `kind`, and for any exception
        that a factory from outside the package raises."""
        part = self.target if self.finished else self._call(options, run, group)
        self.check(part, kind)
        return part

    def check(self, part: object, kind: type) -> None:
        """Raises UserError for a part that does not inherit `kind`, or lacks members of it."""
        if not isinstance(part, kind):
            why = f"its class must inherit trace_bench.{kind.__name__}"
        elif lacks := self.asked(lambda: missing(part, kind)):
            why = f"it has no {', '.join(lacks)}"
        else:
            return
        raise UserError(
            f"{self.where}={self.text} gives {type(part).__name__}, which is no {kind.__name__}: "
            f"{why}. Change `{self.where}`."
        )

    def _call(self, options: Mapping[str, Any], run: RunContext, group: str) -> Any:
        cls, declared = self._declared()
        keywords: dict[str, Any] = {
            name: run for name, p in checked.parameters(self.target).items() if p.hint is RunContext
        }
        if cls is not None:
            (name,) = declared
            keywords[name] = checked.build(cls, options, group)
        else:
            keywords |= checked.arguments(declared, options, group, checked.takes_any(self.target))
        return self.asked(lambda: self.target(**keywords), f" or `{group}.options`")

    def asked(self, call: Callable[[], T], also: str = "") -> T:
        """What a call of the target's code returns. Raises UserError for whatever it raises, unless
        it is this package's own. `also`: what else may be changed."""
        result = attempt(call)
        if not isinstance(result, BaseException):
            return result
        if isinstance(result, TraceBenchError) or self.text.startswith("trace_bench."):
            raise result  # a bug in this package keeps its traceback
        raise UserError(
            f"{self.where}={self.text} raised {described(result)}. Change `{self.where}`{also}."
        ) from result

    def _declared(self) -> tuple[type | None, Mapping[str, checked.Parameter]]:
        """The dataclass of all settings, if there is one, and the parameters that are settings."""
        if self.finished:
            return None, {}
        declared = {
            n: p for n, p in checked.parameters(self.target).items() if p.hint is not RunContext
        }
        if len(declared) == 1:
            (only,) = declared.values()
            if dataclasses.is_dataclass(only.hint) and isinstance(only.hint, type):
                return only.hint, declared
        return None, declared


def load(text: str, where: str) -> Factory:
    """The factory that `text` names, with the working folder on the import path. Raises UserError
    if `text` is not "module:attribute", or if the module or attribute cannot be imported."""
    module, colon, attribute = text.partition(":")
    if not (module and colon and attribute):
        raise not_allowed(where, repr(text), "module:attribute, such as my_module:MyClass")
    if (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    target: Any = attempt(lambda: importlib.import_module(module))  # a script may end the process
    if isinstance(target, BaseException):
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        likely = "" if dotted == module else f" Did you mean {dotted}:{attribute}?"
        absent = target.name if isinstance(target, ModuleNotFoundError) else None
        if module.startswith("trace_bench.") and not f"{module}.".startswith(f"{absent}."):
            raise target  # a bug in this package keeps its traceback
        raise UserError(
            f"{where}={text}: the module {module} cannot be imported ({type(target).__name__}: "
            f"{' '.join(str(target).split())}). Looked for in the working folder and among the "
            f"installed packages.{likely} Change `{where}`."
        ) from target
    for part in attribute.split("."):
        inner = Factory(target, where, text).asked(partial(getattr, target, part, Factory))
        if inner is Factory:
            offered = sorted(n for n in dir(target) if not n.startswith("_"))[:20]
            raise UserError(
                f"{where}={text}: {module} has no attribute {attribute}; it has: "
                f"{', '.join(offered) or 'nothing'}.{meant(part, offered)} Change `{where}`."
            )
        target = inner
    return Factory(target, where, text)


def elsewhere(module: str) -> str | None:
    """Where another module of this name lies that a file of the working folder would hide."""
    path = [place for place in sys.path if place not in ("", str(Path.cwd()))]
    found = (finder.find_spec(module, path) for finder in sys.meta_path)
    own = Path(f"{module}.py").resolve()
    origins = (spec.origin for spec in found if spec is not None and spec.origin is not None)
    return next((origin for origin in origins if Path(origin).resolve() != own), None)
