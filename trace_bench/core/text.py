"""Text from outside: cleaned of what later readers or writers could not handle, and taken apart in
time that grows with its length, whatever a model has written."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
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


THINK, THOUGHT = "<think>", "</think>"


def apart(text: str, begin: str = "", opened: bool = False) -> tuple[str, str]:
    """(thoughts, the rest). `opened`: the text begins inside a thought; one that does not end
    leaves no rest. A mark of thoughts after the `begin` of a call belongs to the call."""
    thoughts: list[str] = []
    rest: list[str] = []
    place, inside = 0, opened
    marks = "|".join(map(re.escape, filter(None, (THINK, THOUGHT, begin))))
    for mark in re.finditer(marks, text):
        if inside and mark[0] == THOUGHT:
            thoughts.append(text[place : mark.start()])
        elif not inside and mark[0] == THINK:
            rest.append(text[place : mark.start()])
        elif inside or mark[0] == THOUGHT:
            continue
        else:
            break
        place, inside = mark.end(), not inside
    (thoughts if inside else rest).append(text[place:])
    return "\n".join(filter(None, map(str.strip, thoughts))), "".join(rest)


def spoken(message: Mapping[str, Any], begin: str = "") -> tuple[str, str]:
    """(thoughts, content) of a message from a server, whether or not it parts them itself; of
    thoughts that began in the prompt it may have left the end alone. Raises TypeError."""
    content = message.get("content") or ""
    thoughts = message.get("reasoning") or message.get("reasoning_content") or ""
    if not isinstance(content, str) or not isinstance(thoughts, str):
        raise TypeError("the message's content or its reasoning is no text")
    first = content.partition(THOUGHT)[0]
    quoted = first.lstrip()[:1] in ("{", "[", "`")  # an answer that speaks of the mark
    opened = first != content and THINK not in first and not thoughts and not quoted
    written, content = apart(content, begin, opened and not (begin and begin in first))
    return "\n".join(filter(None, (thoughts.strip(), written))), content


# A line that opens or closes a block; what opens one may stand behind other words.
_FENCE = re.compile(r"^([^`~\n]*+)(`{3,}+|~{3,}+)[ \t]*+([\w.+#-]*+)[ \t\r]*+$", re.MULTILINE)


def fenced(text: str) -> tuple[list[str], bool]:
    """The blocks between lines of ``` (or more, or of ~), in order, and whether the last has no
    end. In a block may stand shorter fences, and as long ones where the first names a language."""
    blocks: list[str] = []
    inside: list[str] = []  # the marks of the block and of those in it
    start = 0
    for fence in _FENCE.finditer(text):
        before, mark, language = fence.groups()
        if not inside:
            start, inside = fence.end() + 1, [mark]
        elif before.strip() or not mark.startswith(inside[-1]):
            continue
        elif language:
            inside.append(mark)
        elif inside.pop() and not inside:
            blocks.append(text[start : fence.start()])
    return blocks, bool(inside)


def json_in(text: str) -> str:
    """The JSON in an answer: its last block or, where there is no whole one, all from the first
    brace to the last. Raises ValueError if there is none, or a later block has no end."""
    blocks, unended = fenced(text)
    body = blocks[-1] if blocks else text[text.find("{") : text.rfind("}") + 1]
    if blocks and unended:
        raise ValueError("its last block has no end")
    if not body.strip():
        raise ValueError("there is no JSON object in it")
    return body


def between(text: str, start: str, end: str) -> tuple[list[str], str]:
    """The texts between each `start` and the first `end` after it, in order, and the text without
    those blocks and their marks. A `start` without an `end` stays in the rest."""
    head, mark, tail = text.rpartition(end)  # no start behind it has an end
    parts = re.split(f"{re.escape(start)}(.*?){re.escape(end)}", head + mark, flags=re.DOTALL)
    return parts[1::2], "".join([*parts[::2], tail])


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
