"""Cleans text from outside that later readers or writers could not handle."""

from __future__ import annotations

from typing import Any


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
