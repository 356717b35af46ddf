"""The tokens of an episode as one text in its line: base64 of a zlib stream of msgpack, the lists
`prompt_ids`, `token_ids` and `logprobs` of all turns. No number is rounded."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import replace

from trace_bench.core.types import Count, Stored

MOST = 2**24  # bytes of msgpack: more than an episode of a million tokens
Ids = tuple[tuple[Count, ...], ...]


def packed(stored: Stored) -> Stored:
    """The line as it is written: as it is, if it has no tokens, too many, or one not finite."""
    import msgspec

    turns = stored.trajectory.turns
    lists = tuple(zip(*((t.prompt_ids, t.token_ids, t.logprobs) for t in turns), strict=True))
    data = msgspec.msgpack.encode(lists, enc_hook=lambda number: number.item())  # numpy's
    finite = math.isfinite(sum(sum(t.logprobs) for t in turns))
    if not finite or not stored.trajectory.tokens or len(data) > MOST:
        return stored
    bare = tuple(replace(t, prompt_ids=(), token_ids=(), logprobs=()) for t in turns)
    text = base64.b64encode(zlib.compress(data)).decode()
    return replace(stored, trajectory=replace(stored.trajectory, turns=bare), tokens=text)


def unpacked(stored: Stored, text: str) -> Stored:
    """The line with the tokens of the text in their turns. Raises ValueError and zlib.error."""
    import msgspec

    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(text, validate=True), MOST + 1)
    if not stream.eof or len(data) > MOST:
        raise ValueError(f"the stream is cut off, or has more than {MOST} bytes")
    lists = msgspec.msgpack.decode(data, type=tuple[Ids, Ids, tuple[tuple[float, ...], ...]])
    if not math.isfinite(sum(map(sum, lists[2]))):
        raise ValueError("a log-probability is not finite")
    parts = zip(stored.trajectory.turns, *lists, strict=True)
    full = tuple(replace(t, prompt_ids=p, token_ids=s, logprobs=x) for t, p, s, x in parts)
    return replace(stored, trajectory=replace(stored.trajectory, turns=full), tokens=None)
