"""The format of Llama 3.1 to 3.3, a turn that is nothing but JSON (several calls: with ; between):

{"name": "...", "parameters": {...}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from trace_bench.core.limits import measure
from trace_bench.core.types import Tool
from trace_bench.policies.formats import CALL, Format, Malformed, as_call, json_of

_MARK = "<|python_tag|>"  # some models begin with it
_BEGUN = re.compile(r"\{\s*\"name\"")
_BETWEEN = re.compile(r"[ \n]*;?[ \n]*")
_DECODER = json.JSONDecoder()


class Llama(Format):
    begin = '{"name"'
    around = ((), (), "parameters")

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        body = text.strip().removeprefix(_MARK).strip()
        if not _BEGUN.match(body):
            return text, []
        ends = [0]
        try:
            measure(body.encode("utf-8", "surrogatepass"), CALL)
            while ends[-1] < len(body):
                end = _DECODER.raw_decode(body, ends[-1])[1]
                ends.append(_BETWEEN.match(body, end).end())  # type: ignore[union-attr]
        except ValueError as error:
            raise Malformed(f"not JSON: {error}") from None
        found = [json_of(body[start:end].rstrip("; \n")) for start, end in pairwise(ends)]
        if not {"parameters", "arguments"} & found[0].keys():  # an answer that happens to be JSON
            return text, []
        return "", [as_call(one, _key(one)) for one in found]

    def before(self, text: str) -> str:
        """Nothing, of a text that may become a call."""
        start = text.lstrip()[: len(_MARK)]
        return "" if start.startswith("{") or _MARK.startswith(start) else text


def _key(data: Any) -> str:
    return "parameters" if isinstance(data, dict) and "parameters" in data else "arguments"
