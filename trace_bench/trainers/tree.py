"""The trajectories of a batch as a tree of tokens, so that no prefix is computed twice.

Rollouts of one task share their prompt and often their first turns; rollouts of all tasks share
the system prompt. A token's hidden state depends only on the tokens before it, so every distinct
prefix is one node, computed once, and its gradient is the sum over the trajectories through it.
This is exact: no trajectory attends to another one's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trace_bench.core.types import Trajectory

_PADDED = 1 << 14  # scores of padding that cost about as much as a bucket more
_MASKED = 1024  # tokens of the longest path with a mask, which grows with the square of it


@dataclass(frozen=True)
class Tokens:
    """One training sequence. `sampled`: the positions of the sampled tokens. `logprobs`: their
    log-probabilities as the sampler reported them, or as the learner gives them before the first
    step; `base`: the base model's, where an algorithm asks for them."""

    ids: np.ndarray  # int64 [length]
    sampled: np.ndarray  # int64 [sampled]
    logprobs: np.ndarray  # float32 [sampled]
    base: np.ndarray | None = None

    @classmethod
    def of(cls, ids: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float]) -> Tokens:
        places = np.array(sampled, dtype=np.int64)
        return cls(np.array(ids, dtype=np.int64), places, np.array(logprobs, dtype=np.float32))


@dataclass(frozen=True)
class TreeRows:
    """Attention of some trajectories: each row's own nodes attend to the row's whole path.

    queries [rows, width], keys [rows, length]: node numbers, 0 where padded; allowed
    [rows, width, length]. Rows whose path is long or mostly their own have no mask (None): their
    queries are the whole path, the nodes of other rows too, and each attends to the places up to
    its own, so that only half of the scores are computed."""

    queries: np.ndarray
    keys: np.ndarray
    allowed: np.ndarray | None


@dataclass(frozen=True)
class Tree:
    """ids, positions [nodes]. `home` [nodes]: the index of a node's output among the padded queries
    of all `rows`, concatenated. Sampled token t of the batch (trajectories in order) was sampled
    at node `at[choice[t]]` and is `token[choice[t]]`: `nodes_at` [chosen nodes] are the nodes that
    need logits, `line` [pairs] indexes them, and pairs (line, token) are distinct."""

    ids: np.ndarray
    positions: np.ndarray
    rows: tuple[TreeRows, ...]
    home: np.ndarray
    nodes_at: np.ndarray
    line: np.ndarray
    token: np.ndarray
    choice: np.ndarray


def stretches(*trajectories: Trajectory) -> list[Tokens]:
    """The training sequences of trajectories: each stretch of a conversation that the model read as
    one growing text, with its exact ids; nothing is tokenized again. Of a stretch's ids those are
    sampled that were sampled in it; the earlier ones that it begins with are its prompt. It ends
    at the last sampled token, since later tokens do not enter the loss."""
    return [sequence for t in trajectories for sequence in _stretches(t)]


def _stretches(trajectory: Trajectory) -> Iterator[Tokens]:
    ids: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    for turn in trajectory.turns:
        if turn.kept is not None:
            yield from _ended(ids, sampled, logprobs)
            del ids[turn.kept :]
            sampled, logprobs = [], []
        ids += turn.prompt_ids
        sampled += range(len(ids), len(ids) + len(turn.token_ids))
        logprobs += turn.logprobs
        ids += turn.token_ids
    yield from _ended(ids, sampled, logprobs)


def _ended(ids: list[int], sampled: list[int], logprobs: list[float]) -> Iterator[Tokens]:
    if sampled:
        yield Tokens.of(ids[: sampled[-1] + 1], sampled, logprobs)


def build(sequences: Sequence[Tokens]) -> Tree:
    """The tree of a batch. Every sequence must have at least one prompt and one sampled token."""
    paths, starts = _paths([s.ids[:-1] for s in sequences])
    nodes = max(int(p[-1]) for p in paths) + 1
    ids, positions = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    for sequence, path in zip(sequences, paths, strict=True):
        ids[path] = sequence.ids[:-1]
        positions[path] = np.arange(len(path))
    rows, home = _rows(paths, starts, nodes)
    at = np.concatenate([p[s.sampled - 1] for s, p in zip(sequences, paths, strict=True)])
    tokens = np.concatenate([s.ids[s.sampled] for s in sequences])
    pairs, choice = np.unique(np.stack([at, tokens]), axis=1, return_inverse=True)
    nodes_at, line = np.unique(pairs[0], return_inverse=True)
    return Tree(
        ids, positions, rows, home, nodes_at, line.reshape(-1), pairs[1], choice.reshape(-1)
    )


def _paths(inputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Each sequence's node numbers, and how many of them it shares with earlier sequences."""
    paths: list[np.ndarray] = []
    starts: list[int] = []
    nodes = 0
    for i, ids in enumerate(inputs):
        start, source = _shared(ids, inputs[:i])
        new = np.arange(nodes, nodes + len(ids) - start)
        nodes += len(new)
        paths.append(np.concatenate([paths[source][:start], new]) if i else new)
        starts.append(start)
    return paths, starts


def _rows(
    paths: Sequence[np.ndarray], starts: Sequence[int], nodes: int
) -> tuple[tuple[TreeRows, ...], np.ndarray]:
    """Attention rows, in buckets of similar shape."""
    masked: dict[int, tuple[int, int]] = {}  # (queries, keys) of each row
    causal: dict[int, tuple[int, int]] = {}
    for i, (path, start) in enumerate(zip(paths, starts, strict=True)):
        length, fresh = len(path), len(path) - start
        if fresh and (length > _MASKED or 2 * fresh > length):
            causal[i] = length, length
        elif fresh:
            masked[i] = fresh, length
    home = np.zeros(nodes, np.int64)
    out: list[TreeRows] = []
    offset = 0
    for bucket in _buckets(masked) + _buckets(causal):
        first = [0 if i in causal else starts[i] for i in bucket]
        rows = _row(paths, bucket, first, masked=bucket[0] in masked)
        for r, i in enumerate(bucket):
            new = np.arange(starts[i], len(paths[i]))
            home[paths[i][new]] = offset + r * rows.queries.shape[1] + new - first[r]
        out.append(rows)
        offset += rows.queries.size
    return tuple(out), home


def _buckets(shapes: Mapping[int, tuple[int, int]]) -> list[list[int]]:
    """Rows of (queries, keys) put together as long as padding adds few scores: few enough for a
    call more to cost as much, or an eighth of those that are needed."""
    buckets: list[list[int]] = []
    longest = scores = 0  # of the last bucket
    for i in sorted(shapes, key=lambda i: (shapes[i], i)):
        width, length = shapes[i]
        longest, scores = max(longest, length), scores + width * length
        padded = (len(buckets[-1]) + 1) * width * longest - scores if buckets else 0
        if buckets and padded <= max(_PADDED, scores // 8):
            buckets[-1].append(i)
        else:
            buckets.append([i])
            longest, scores = length, width * length
    return buckets


def _row(
    paths: Sequence[np.ndarray], bucket: Sequence[int], first: Sequence[int], masked: bool
) -> TreeRows:
    """The rows of a bucket; each one's queries are its path from `first` on."""
    width = max(len(paths[i]) - f for i, f in zip(bucket, first, strict=True))
    length = max(len(paths[i]) for i in bucket)
    queries = np.zeros((len(bucket), width), np.int64)
    keys = np.zeros((len(bucket), length), np.int64)
    last = np.zeros((len(bucket), width), np.int64)  # padded queries attend to their first key
    for r, (i, f) in enumerate(zip(bucket, first, strict=True)):
        new = len(paths[i]) - f
        queries[r, :new] = paths[i][f:]
        keys[r, : len(paths[i])] = paths[i]
        last[r, :new] = np.arange(f, len(paths[i]))
    return TreeRows(queries, keys, np.arange(length) <= last[:, :, None] if masked else None)


@dataclass(frozen=True)
class MemoryBudget:
    """The memory for what a forward pass keeps for the backward pass, in bytes: `total` of it,
    `node` for each distinct token, `sampled` for each sampled token (its logits)."""

    total: float
    node: float
    sampled: float

    def holds(self, nodes: int, sampled: int) -> bool:
        """Whether a pass over so many distinct and sampled tokens fits."""
        return nodes * self.node + sampled * self.sampled <= self.total


def parts(batch: Sequence[Tokens], tokens: int, memory: MemoryBudget) -> Iterator[list[Tokens]]:
    """Consecutive parts of a batch, each of at least one sequence, at most `tokens` tokens, and
    such that it fits the memory budget. A sequence that does not fit alone is a part of its own."""
    part: list[Tokens] = []
    size = nodes = sampled = 0
    for sequence in batch:
        new = len(sequence.ids) - _shared(sequence.ids, [other.ids for other in part])[0]
        full = size + len(sequence.ids) > tokens
        if part and (full or not memory.holds(nodes + new, sampled + len(sequence.sampled))):
            yield part
            part, size, nodes, sampled = [], 0, 0, 0
            new = len(sequence.ids)
        part.append(sequence)
        size += len(sequence.ids)
        nodes += new
        sampled += len(sequence.sampled)
    yield part


def _shared(ids: np.ndarray, earlier: Sequence[np.ndarray]) -> tuple[int, int]:
    """The longest beginning that `ids` shares with an earlier sequence, and the first such one."""
    longest = place = 0
    for n, other in enumerate(earlier):
        width = min(len(ids), len(other))
        differs = ids[:width] != other[:width]
        common = int(differs.argmax()) if differs.any() else width
        if common > longest:
            longest, place = common, n
    return longest, place
