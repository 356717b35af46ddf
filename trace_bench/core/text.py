"""Text from outside: cleaned of what later readers or writers could not handle, and taken apart in
time that grows with its length, whatever a model has written."""

from __future__ import annotations

import hashlib
import re
from typing import Any

LONGEST_ERROR = 3000  # characters of an exception's text that are kept
LONGEST_NAME = 300  # characters of a task's id, and of other names
# In an address's own form, and as name:password@host. What follows the @ is neither an image's
# digest nor a number, as in the names of adapters.
_PASSWORD = re.compile(
    r"(?<=//)[^\s/]+@|(?<![\w.+-])[\w.+-]{1,64}:[^\s/'\"]{1,200}@"
    r"(?=\[|[\w-]+\.\w|[A-Za-z](?!ha\d+:))"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def is_name(value: Any) -> bool:
    """Whether it is a short text without control characters."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def described(error: BaseException) -> str:
    """`ValueError: what it says`, without control characters (a terminal obeys them), lone
    surrogates and passwords; an exception from outside may hold anything, or raise as a text."""
    try:
        said = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as why:
        said = f"its text raises {type(why).__name__}"
    text = without_password(f"{type(error).__name__}: {said}"[:LONGEST_ERROR])
    return _CONTROL.sub("\ufffd", text)


def without_password(text: str) -> str:
    """The text without what stands before the @ of an address in it."""
    return _PASSWORD.sub("***@", text)


def between(text: str, start: str, end: str) -> tuple[list[str], str]:
    """The texts between each `start` and the first `end` after it, in order, and the text without
    those blocks and their marks. A `start` without an `end` stays in the rest."""
    blocks: list[str] = []
    rest: list[str] = []
    place = 0
    while (opened := text.find(start, place)) >= 0:
        closed = text.find(end, opened + len(start))
        if closed < 0:
            break
        rest.append(text[place:opened])
        blocks.append(text[opened + len(start) : closed])
        place = closed + len(end)
    return blocks, "".join([*rest, text[place:]])


def without_surrogates(value: Any) -> Any:
    """A JSON value with lone surrogates replaced by U+FFFD. JSON allows them, but UTF-8 files and
    tokenizers do not."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(v) for v in value]
    if isinstance(value, dict):
        return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
    return value


def file_name(text: str) -> str:
    """Any text, such as a name in a stranger's file, as one part of a path: letters, digits and
    `_+.:@-`, no leading dot, at most 100 characters. What had to be changed has a digest behind it,
    so that two texts do not share a name."""
    plain = re.sub(r"[^A-Za-z0-9_+.:@-]+", "-", text).lstrip(".-")
    if plain == text and 0 < len(text) <= 100:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{plain[:89] or '_'}-{digest[:10]}"


def visible(text: str) -> str:
    """The text with its control characters written out: a terminal would obey them."""
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)
