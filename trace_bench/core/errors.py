"""Errors, by where they are handled.

`UserError` is for the person at the command line: it names what was given, what is allowed and
which setting to change, and ends the program without a traceback. `EpisodeError` is for one
episode: it becomes a `Failure` on that episode's trajectory and never ends a run.
"""

from __future__ import annotations

from collections.abc import Iterable


class TraceBenchError(Exception):
    """Base class of the project's own errors."""


class UserError(TraceBenchError):
    """A problem that the person who started the program can fix."""


class SourceError(UserError):
    """A generated program cannot be used (any more). The sandbox that it was tried in works."""


class EngineError(UserError):
    """The Docker engine does not answer, or does not do what it was asked."""


class EpisodeError(TraceBenchError):
    """One episode failed. `boundary`: the part in which it failed (see `types.Boundary`)."""

    def __init__(self, boundary: str, message: str) -> None:
        super().__init__(message)
        self.boundary = boundary


class BudgetExceeded(TraceBenchError):
    """A method asked for more rollouts than its budget has left."""


def unknown(kind: str, given: object, allowed: Iterable[object], setting: str) -> UserError:
    """The UserError for an unknown name: what was given, what is allowed, which setting to set."""
    names = ", ".join(str(name) for name in allowed)
    return UserError(f"unknown {kind} {given!r}; allowed: {names}. Change the setting `{setting}`.")
