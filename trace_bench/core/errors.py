"""Errors, by where they are handled: `UserError` by the person at the command line, `EpisodeError`
as one episode's `Failure`."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar

from trace_bench.core.text import described, without_password

T = TypeVar("T")


class TraceBenchError(Exception):
    """Base class of the project's own errors. None shows an address's password."""

    def __init__(self, message: str) -> None:
        super().__init__(without_password(message))


class UserError(TraceBenchError):
    """A problem that the person who started the program can fix: names what was given, what is
    allowed and which setting to change, and ends the program without a traceback."""


class SourceError(UserError):
    """A generated program cannot be used (any more). The sandbox that it was tried in works."""


class EngineError(UserError):
    """The Docker engine does not answer, or does not do what it was asked."""


class EpisodeError(TraceBenchError):
    """One episode failed, which never ends a run. `boundary`: where (see `types.Boundary`)."""

    def __init__(self, boundary: str, message: str) -> None:
        super().__init__(message)
        self.boundary = boundary


class BudgetExceeded(TraceBenchError):
    """A method asked for more rollouts than its budget has left."""


def attempt(call: Callable[[], T]) -> T | BaseException:
    """What a call of code from outside returns, or what it raises: `sys.exit` and other exceptions
    than Python's usual ones too. Only the person at the keyboard ends the program."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error


@contextmanager
def outlasting() -> Iterator[None]:
    """Turns what would end the program without a word (see `attempt`; a broken pipe too, which ends
    what only prints), wherever code from outside raises it, into a UserError that names it."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception | KeyboardInterrupt) and type(error) is not BrokenPipeError:
            raise
        *_, place = traceback.extract_tb(error.__traceback__)
        raise UserError(
            f"{place.filename}, line {place.lineno} ended the run with {described(error)}; only "
            "Ctrl-C may. Change that part, then run the same command again."
        ) from error


def not_allowed(setting: str, value: object, allowed: object) -> UserError:
    """The UserError for a value, as it was given, of a setting or of an option (`--limit`)."""
    typed = f"{setting}{' ' if setting.startswith('-') else '='}{value}"
    return UserError(f"{typed} is not allowed; allowed: {allowed}. Change `{setting}`.")


def unknown(
    kind: str, name: object, allowed: Iterable[object], setting: str, elsewhere: Iterable[str] = ()
) -> UserError:
    """The UserError for an unknown name: what was given, what is allowed, what was probably meant
    (also of what is allowed `elsewhere`), which setting to set."""
    names = [str(one) for one in allowed]
    return UserError(
        f"unknown {kind} {name!r}; allowed: {', '.join(names)}."
        f"{meant(str(name), names, elsewhere)} Change the setting `{setting}`."
    )


def meant(name: str, names: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """The question which name was meant: one whose last word (of trainer.rank or tracker=wandb) is
    this one's, is like it, begins with it, or is abbreviated by it (lr). "" without any."""
    last, here, others = _last(name), list(names), list(elsewhere)
    likely = [one for one in (*here, *others) if _last(one) == last]
    likely = likely or _alike(last, here, 0.6) or _alike(last, others, 0.8)
    return f" Did you mean {' or '.join(likely[:3])}?" if likely else ""


def _alike(word: str, names: Iterable[str], cutoff: float) -> list[str]:
    ends = {name: _last(name) for name in names}
    close = get_close_matches(word, ends.values(), 1, cutoff)
    parts = {name: end.split("_") for name, end in ends.items()}
    return (
        [name for name, end in ends.items() if end in close]
        or [name for name, each in parts.items() if "".join(part[:1] for part in each) == word]
        or [n for n, each in parts.items() if word[2:] and any(p.startswith(word) for p in each)]
        or [name for name, end in ends.items() if end[1:] and word.startswith(end)]
    )


def _last(name: str) -> str:
    return re.split(r"[.=]", name)[-1].lower().replace("-", "_")
