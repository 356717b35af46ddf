"""Text from outside that would break what reads or writes it later."""

from __future__ import annotations

from typing import Any


def without_surrogates(value: Any) -> Any:
    """A JSON value whose texts can be encoded. JSON allows half of a surrogate pair, which is no
    character, and which neither UTF-8 files nor tokenizers take: it becomes U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(v) for v in value]
    if isinstance(value, dict):
        return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
    return value
