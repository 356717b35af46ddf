"""How each command of the package reads its arguments and ends."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from trace_bench.core import VERSION
from trace_bench.core.errors import UserError, meant, not_allowed
from trace_bench.core.text import visible

if TYPE_CHECKING:
    import argparse

WRONG_INPUT = 2
INTERRUPTED = 130
SAID = f"trace_bench {VERSION}"

Main = Callable[[Sequence[str]], int]


class _Stream(io.FileIO):
    """A standard stream that ends no program: what a full disk or a closed end does not take is
    dropped, and `lost` says why. Only the reader of the output ends one, by having seen enough."""

    lost = ""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.fileno() == 1 and isinstance(error, BrokenPipeError):
                raise
            self.lost = error.strerror or ""
            return len(data)


def _lasting(stream: TextIO | None, raw: _Stream) -> TextIO:
    coding, errors = (stream.encoding, stream.errors) if stream else ("utf-8", "backslashreplace")
    by_line = raw.fileno() == 2 or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), coding, errors, line_buffering=by_line)


@contextlib.contextmanager
def _lasting_streams() -> Iterator[None]:
    """Standard streams that end no program in the block; says what was lost of the output."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # in the place of one that is closed
        os.set_inheritable(number, True)
    os.close(number)
    out, err = (_Stream(number, "w", closefd=False) for number in (1, 2))
    if sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__:  # else a test reads them
        sys.stdout, sys.stderr = _lasting(sys.stdout, out), _lasting(sys.stderr, err)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has gone; the program has ended as it has
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if out.lost:
            print(f"the output could not be written: {out.lost}", file=sys.stderr)


def command(interrupted: str | None = None) -> Callable[[Main], Callable[..., int]]:
    """Makes a function of the command line's words a program that returns its exit code, whatever
    its streams take, or 2 after the one line of a UserError, or 0 when a reader of the output
    (head, less) has seen enough. `interrupted`: what Ctrl-C prints, with the exit code 130 (None:
    Ctrl-C is not handled)."""

    def decorate(main: Main) -> Callable[..., int]:
        @functools.wraps(main)
        def ended(arguments: Sequence[str] | None = None) -> int:
            try:
                if arguments is not None:
                    return main(arguments)
                with _lasting_streams():
                    return main(sys.argv[1:])
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
    """Prints the one line of an error and returns its exit code."""
    print(visible(f"error: {error}"), file=sys.stderr, flush=True)
    return WRONG_INPUT


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m trace_bench.<name>`, described by its module's docstring."""
    import argparse

    class Parser(argparse.ArgumentParser):
        """Answers wrong words as settings are answered, by one line."""

        def error(self, message: str) -> NoReturn:
            word = re.search(r"unrecognized arguments: (\S+)", message)
            guess = meant(word[1], self._option_string_actions) if word else ""
            usage = " ".join(self.format_usage().split())
            raise UserError(f"{message}.{guess} {usage[:1].upper()}{usage[1:]}")

        def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
            for word in args or ():
                key, equals, value = word.partition("=")
                if equals and f"--{key}" in self._option_string_actions:
                    raise UserError(f"{word} is no setting but an option: write --{key} {value}.")
            return super().parse_known_args(args, namespace)

    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = Parser(f"python -m trace_bench.{name}", description=about, formatter_class=as_it_is)
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


def take(arguments: list[str], key: str) -> str | None:
    """Removes `key=value` (or of a flag, `--key value`) from the arguments; its value."""
    for place, text in enumerate(arguments):
        if text.startswith(f"{key}="):
            return arguments.pop(place).partition("=")[2]
        if text == key and key.startswith("-") and place + 1 < len(arguments):
            arguments.pop(place)
            return arguments.pop(place)
    return None


def whole_number(name: str, value: str | int, low: int = 1, high: int = 10**9) -> int:
    """The whole number that was given for an option. Raises UserError for any other text."""
    text = str(value)
    if not text.isdecimal() or len(text) > 10 or not low <= int(text) <= high:
        raise not_allowed(name, text, f"a whole number from {low} to {high}")
    return int(text)
