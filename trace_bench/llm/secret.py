"""Removes a server's key from whatever the server says, in every encoding in which it may return.

A server that complains about a request may repeat it, escaped as its own framework does it. So each
character of the key is looked for as itself, as a JSON escape, in URL encoding and as an HTML
entity, mixed and escaped twice, and the whole key also in base64 (within any longer text) and in
hexadecimal digits.
"""

from __future__ import annotations

import base64
import re
from typing import Any

HIDDEN = "***"
_SHORTEST = 8  # characters of base64 or hexadecimal digits that are no coincidence


class Secret:
    """`clean` takes the key out of a text, `clean_value` out of all texts of a JSON value. Without
    a key both change nothing."""

    def __init__(self, key: str | None) -> None:
        self._pattern = re.compile("|".join(map(_spelled, _forms(key)))) if key else None

    def clean(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._pattern else text

    def clean_value(self, value: Any) -> Any:
        """The value with its texts cleaned, the names of its fields included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self.clean(name): self.clean_value(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.clean_value(item) for item in value]
        return value


def _forms(key: str) -> list[str]:
    """The key, and its base64 and hexadecimal forms."""
    data = key.encode()
    forms = {data.hex(), data.hex().upper()}
    for before in range(3):  # bytes of other text before the key in a group of three
        code = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        first = -(-before * 8 // 6)  # characters that the other text decides, too
        last = (before + len(data)) * 8 // 6
        for form in (code[first:last], code[first:last].translate(_URL_SAFE)):
            forms.add(form)
    return [key, *sorted(form for form in forms if len(form) >= _SHORTEST)]


_URL_SAFE = str.maketrans("+/", "-_")


def _spelled(text: str) -> str:
    """A pattern of the text with every character in any encoding."""
    return "".join(map(_spellings, text))


def _spellings(character: str) -> str:
    code = ord(character)
    octets = "".join(f"%(?:25)*{octet:02x}" for octet in character.encode())
    ways = (
        rf"\\{{0,8}}{re.escape(character)}",
        rf"\\{{1,8}}(?i:u{code:04x}|u\{{0*{code:x}\}}|x{code:02x})",
        f"(?i:{octets})",
        f"(?i:&#0*{code};|&#x0*{code:x};)",
    )
    return f"(?:{'|'.join(ways)})"
