"""How each command of the package reads its arguments and ends."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trace_bench.core import VERSION
from trace_bench.core.errors import UserError
from trace_bench.core.text import visible

if TYPE_CHECKING:
    import argparse

WRONG_INPUT = 2
INTERRUPTED = 130
SAID = f"trace_bench {VERSION}"

Main = Callable[[Sequence[str]], int]


def command(interrupted: str | None = None) -> Callable[[Main], Callable[..., int]]:
    """Makes a function of the command line's words a program that returns its exit code, or 2 after
    the one line of a UserError, or 0 when a reader of the output (head, less) has seen enough.
    `interrupted`: what Ctrl-C prints, with the exit code 130 (None: Ctrl-C is not handled)."""

    def decorate(main: Main) -> Callable[..., int]:
        @functools.wraps(main)
        def ended(arguments: Sequence[str] | None = None) -> int:
            try:
                return main(sys.argv[1:] if arguments is None else arguments)
            except UserError as error:
                return complain(error)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left
                return 0
            except KeyboardInterrupt:
                if interrupted is None:
                    raise
                print(interrupted, file=sys.stderr)
                return INTERRUPTED

        return ended

    return decorate


def complain(error: UserError) -> int:
    """Prints the one line of an error, where somebody still reads it, and returns its exit code."""
    with contextlib.suppress(BrokenPipeError):
        print(visible(f"error: {error}"), file=sys.stderr, flush=True)
    return WRONG_INPUT


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m trace_bench.<name>`, described by its module's docstring."""
    import argparse

    parser = argparse.ArgumentParser(
        f"python -m trace_bench.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=SAID)
    return parser


def told(arguments: Sequence[str], about: str | None) -> bool:
    """Whether a command whose words are settings was asked for help or version, which it shows."""
    if {"-h", "--help"} & set(arguments):
        print(about)
    elif "--version" in arguments:
        print(SAID)
    else:
        return False
    return True


def whole_number(name: str, value: str | int, low: int = 1, high: int = 10**9) -> int:
    """The whole number that was given for an option. Raises UserError for any other text."""
    text = str(value)
    if not text.isdecimal() or len(text) > 10 or not low <= int(text) <= high:
        raise UserError(
            f"{name}{' ' if name.startswith('-') else '='}{text} is not allowed; allowed: a whole "
            f"number from {low} to {high}. Change `{name}`."
        )
    return int(text)
