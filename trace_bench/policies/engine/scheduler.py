"""Continuous batching over slots: every step advances every sequence that can advance.

One step is one forward call over rows of unequal length: a sampling row adds one token, a row with
a new prompt adds (a part of) the prompt. A row keeps its slot, and so its cached keys and values,
from its first prompt until its last episode is released.

No prefix is computed twice. Episodes with the same adapter and the same tokens so far share a row,
whatever their seeds: each draws its own next token from the row's logits, and where the tokens (or
the next prompts) differ, the row is copied. So a group of rollouts costs only as much as its
distinct tokens. A new row starts from the longest matching prefix in any slot (same adapter); when
several new rows share a prefix, one goes first.

Nothing is shared across moments at which no episode is live, so the results of a call do not depend
on the calls before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from trace_bench.core.types import T, grouped
from trace_bench.policies.engine.decoder import sample, uniforms
from trace_bench.policies.engine.layout import Backend, Rows

_STEP_TOKENS = 2048  # new tokens in one forward call, which bounds its memory
_WORTH_WAITING = 16  # shared tokens that make a new row wait a step for another's prompt

_WORTH_MOVING = 24  # a row is moved for a new one if it is longer by at least this many tokens


@dataclass(frozen=True)
class Order:
    """The next turn of an episode: new prompt tokens, then sampling until `stop` or the limit.
    `adapter` and `seed` are the same for all orders of an episode: one whose adapter changes is
    released, since its cache is the earlier adapter's, and submitted again with all of its tokens;
    it draws the same numbers at the same places. `kept`: the prompt goes on
    from so many of the episode's tokens so far; None: from all."""

    episode: int
    ids: Sequence[int]
    adapter: str | None = None
    seed: int = 0
    temperature: float = 1.0
    max_tokens: int = 96
    kept: int | None = None


@dataclass(frozen=True)
class Sampled:
    """A finished turn: ids with their log-probabilities; `truncated`: the limit was hit."""

    episode: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    truncated: bool


@dataclass(eq=False)
class _Member:
    """A live episode and its latest order, which is `waiting` until a row has begun with it."""

    order: Order
    waiting: bool = True
    limit: int = 0
    draws: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def following(self) -> tuple[tuple[int, ...], int | None] | None:
        """What the row is to begin with, if it is to begin."""
        return (tuple(self.order.ids), self.order.kept) if self.waiting else None


@dataclass(eq=False)
class _Row:
    """Episodes with the same tokens so far: `cached` ones in the slot, then the pending ones. A
    row samples for all its members (`active`), or waits for their next orders."""

    adapter: str | None
    slot: int
    cached: int
    pending: list[int]
    members: list[_Member]
    active: bool = True


class Scheduler:
    """Schedules episodes on a backend with `slots` slots of `context` tokens."""

    def __init__(self, backend: Backend, slots: int, context: int, stop: int) -> None:
        self.backend, self.slots, self.context, self.stop = backend, slots, context, stop
        self.computed = 0  # tokens computed so far
        self._members: dict[int, _Member] = {}
        self._rows: list[_Row] = []
        self._row_of: dict[int, _Row] = {}
        self._waiting: list[_Member] = []  # live, without a row yet, in order of arrival
        # A row that must be copied always finds a free slot, since an episode is only admitted
        # while there are fewer episodes in rows than slots.
        self._free = list(range(slots))
        # The tokens in each slot's cache, to find shared prefixes; kept until the slot is reused.
        self._held = np.zeros((slots, context), dtype=np.int32)
        self._length = np.zeros(slots, dtype=np.int64)
        self._adapter: list[str | None] = [None] * slots

    def adapters(self) -> set[str | None]:
        """The adapters that live episodes use."""
        return {member.order.adapter for member in self._members.values()}

    def sampled(self, episode: int) -> Sampled:
        """An episode's open turn so far."""
        member = self._members[episode]
        return Sampled(episode, tuple(member.ids), tuple(member.logprobs), True)

    def fits(self, episode: int, new: int, kept: int | None = None) -> bool:
        """Whether `new` prompt tokens and one sampled token fit the episode's context."""
        return self._before(episode, kept) + new < self.context

    def submit(self, order: Order) -> None:
        """Queues a turn. The first order of an episode makes it live."""
        if not self.fits(order.episode, len(order.ids), order.kept):
            raise ValueError(f"episode {order.episode}: the prompt is too long")
        start = self._before(order.episode, order.kept) + len(order.ids)
        member = self._members.get(order.episode)
        if member is None:
            member = self._members[order.episode] = _Member(order)
            self._waiting.append(member)
        elif member.waiting or self._row_of[order.episode].active:
            raise ValueError(f"episode {order.episode}: a turn is open already")
        member.order, member.waiting = order, True
        member.limit = min(order.max_tokens, self.context - start)
        greedy = order.temperature <= 0  # whose seed may be anything
        unused = np.zeros(member.limit, np.float32)
        member.draws = unused if greedy else uniforms(order.seed, start, member.limit)
        member.ids, member.logprobs = [], []

    def release(self, episode: int) -> None:
        """Forgets an episode. Its row's slot is free once the row has no episodes left."""
        member = self._members.pop(episode, None)
        if member is None:
            return
        row = self._row_of.pop(episode, None)
        if row is None:
            self._waiting.remove(member)
        else:
            row.members.remove(member)
            if not row.members:
                self._rows.remove(row)
                heapq.heappush(self._free, row.slot)
        if not self._members:
            self._length[:] = 0

    @torch.inference_mode()
    def step(self) -> list[Sampled]:
        """Advances every row that can advance; returns the finished turns, in order of rows."""
        self._resume()
        self._admit()
        rows = [r for r in self._rows if r.active]
        if not rows:
            raise RuntimeError("step() with nothing to do: submit a turn first")
        self._compact(rows)
        rows.sort(key=lambda r: (r.adapter or "", r.slot))
        counts = _share([len(r.pending) for r in rows])
        rows = [r for r, c in zip(rows, counts, strict=True) if c]
        counts = [c for c in counts if c]
        logits = self._forward(rows, counts)
        ready = []  # (row of the logits, row, member) of rows without pending tokens
        for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
            row.cached += count
            del row.pending[:count]
            if not row.pending:
                ready += [(i, row, member) for member in row.members]
        if not ready:
            return []
        picked = [i for i, _, _ in ready]
        if picked != list(range(len(rows))):
            logits = logits.index_select(0, torch.tensor(picked))
        members = [member for _, _, member in ready]
        draws = np.array([m.draws[len(m.ids)] for m in members])
        temperatures = torch.tensor([m.order.temperature for m in members])
        ids, logprobs = sample(logits, temperatures, torch.from_numpy(draws))
        for member, token, logprob in zip(members, ids.tolist(), logprobs.tolist(), strict=True):
            member.ids.append(token)
            member.logprobs.append(logprob)
        return self._advance([rows[i] for i in dict.fromkeys(picked)])

    def _forward(self, rows: list[_Row], counts: list[int]) -> torch.Tensor:
        new = [i for r, c in zip(rows, counts, strict=True) for i in r.pending[:c]]
        batch = Rows(
            np.array(new),
            np.array([r.slot for r in rows]),
            np.array([r.cached for r in rows]),
            np.array(counts),
            [r.adapter for r in rows],
        )
        self._held[np.repeat(batch.slots, counts), batch.positions] = batch.ids
        self._length[batch.slots] = batch.starts + batch.counts
        self.computed += len(new)
        return self.backend.forward(batch)

    def _advance(self, rows: list[_Row]) -> list[Sampled]:
        """Splits rows whose members' newest tokens differ; returns the finished turns."""
        done = []
        for part, (token, ended) in self._split(rows, self._newest):
            part.pending, part.active = [token], not ended
            if ended:
                done += [
                    Sampled(m.order.episode, tuple(m.ids), tuple(m.logprobs), token != self.stop)
                    for m in part.members
                ]
        return done

    def _newest(self, member: _Member) -> tuple[int, bool]:
        """A member's newest token, and whether the turn ends with it."""
        token = member.ids[-1]
        return token, token == self.stop or len(member.ids) == member.limit

    def _resume(self) -> None:
        """Starts the next turn of rows whose members have new orders; splits rows that differ."""
        resting = [row for row in self._rows if not row.active]
        for part, following in self._split(resting, lambda member: member.following):
            if following is not None:
                ids, kept = following
                if kept is not None:
                    self._cut(part, kept)
                part.pending.extend(ids)
                part.active = True
                for member in part.members:
                    member.waiting = False

    def _cut(self, row: _Row, kept: int) -> None:
        """Forgets all but the first tokens of a row."""
        del row.pending[max(0, kept - row.cached) :]
        row.cached = min(row.cached, kept)
        self._length[row.slot] = row.cached

    def _split(self, rows: list[_Row], by: Callable[[_Member], T]) -> Iterator[tuple[_Row, T]]:
        """Each row in parts whose members are alike by what `by` gives for them, with that; the
        first part keeps the row's slot."""
        for row in rows:
            first, *others = grouped(row.members, by).items()
            row.members = first[1]
            parts = [(row, first[0])]
            for key, members in others:
                slot = heapq.heappop(self._free)
                copy = _Row(row.adapter, slot, row.cached, list(row.pending), members, row.active)
                self._move(row, slot)
                self._rows.append(copy)
                self._row_of |= {member.order.episode: copy for member in members}
                parts.append((copy, key))
            yield from parts

    def _before(self, episode: int, kept: int | None) -> int:
        """Tokens of an episode before its next prompt."""
        row = self._row_of.get(episode)
        tokens = 0 if row is None else row.cached + len(row.pending)
        return tokens if kept is None else min(tokens, kept)

    def _admit(self) -> None:
        """Gives waiting episodes a row, in order; copies cached prefixes."""
        started: dict[tuple[str | None, tuple[int, ...]], _Row] = {}
        later: list[_Member] = []
        for member in self._waiting:
            adapter, ids = member.order.adapter, tuple(member.order.ids)
            row = started.get((adapter, ids))
            if len(self._row_of) == self.slots:
                row = None
            elif row is None and (row := self._start(adapter, ids, started.values())) is not None:
                started[adapter, ids] = row
                self._rows.append(row)
            if row is None:
                later.append(member)
            else:
                row.members.append(member)
                self._row_of[member.order.episode] = row
                member.waiting = False
        self._waiting = later

    def _start(
        self, adapter: str | None, ids: tuple[int, ...], started: Iterable[_Row]
    ) -> _Row | None:
        """A new row for a prompt; None if it should wait for a row with a common prefix."""
        prompt = np.array(ids, dtype=np.int32)
        slot = self._make_way(heapq.heappop(self._free), len(prompt))
        source, shared = self._longest_beginning(adapter, prompt)
        if any(
            r.adapter == adapter and _common(prompt, r) >= shared + _WORTH_WAITING for r in started
        ):
            heapq.heappush(self._free, slot)
            return None
        if shared and source != slot:
            self.backend.copy(source, slot, shared)
            self._held[slot, :shared] = prompt[:shared]
        self._adapter[slot], self._length[slot] = adapter, shared
        return _Row(adapter, slot, shared, list(ids[shared:]), [])

    def _longest_beginning(self, adapter: str | None, prompt: np.ndarray) -> tuple[int, int]:
        """(slot, tokens) of the longest cached prefix of `prompt`, without its last token."""
        width = len(prompt) - 1
        same = np.array([name == adapter for name in self._adapter])
        usable = np.where(same, np.minimum(self._length, width), 0)
        if width < 1 or not usable.any():
            return 0, 0
        differs = self._held[:, :width] != prompt[:width]
        common = np.where(differs.any(1), differs.argmax(1), width)
        common = np.minimum(common, usable)
        best = int(common.argmax())
        return best, int(common[best])

    def _make_way(self, slot: int, length: int) -> int:
        """The slot for a new row of `length` tokens, given the free slot `slot`. Slots that attend
        together cost as much as their longest row, so long ones are kept in low slots: the longest
        of each later block moves up."""
        size = self.backend.block
        for block in range(slot // size + 1, -(-self.slots // size)):
            inside = [row for row in self._rows if row.slot // size == block]
            longest = max(inside, key=lambda row: row.cached, default=None)
            if longest is not None and longest.cached > length + _WORTH_MOVING:
                longest.slot, slot = self._move(longest, slot), longest.slot
        return slot

    def _compact(self, rows: list[_Row]) -> None:
        """Keeps active rows in low slots, since decoding works on a span of slots."""
        span = max(r.slot for r in rows) + 1
        if span <= len(rows) + max(4, len(rows) // 4):
            return
        for row in sorted(rows, key=lambda r: -r.slot):
            if not self._free or self._free[0] > row.slot:
                return
            target = heapq.heappop(self._free)
            heapq.heappush(self._free, row.slot)
            row.slot = self._move(row, target)

    def _move(self, row: _Row, target: int) -> int:
        """Moves a row's cache and its bookkeeping to the slot `target`."""
        self.backend.copy(row.slot, target, row.cached)
        self._held[target, : row.cached] = self._held[row.slot, : row.cached]
        self._adapter[target], self._length[target] = row.adapter, row.cached
        return target


def _share(wanted: list[int]) -> list[int]:
    """How many tokens of each row this step computes: rows with one token always, others in order
    until the step is full (at least one row advances)."""
    left = _STEP_TOKENS - sum(w == 1 for w in wanted)
    out = []
    for w in wanted:
        out.append(w if w == 1 else max(0, min(w, left)))
        left -= out[-1] if w > 1 else 0
    return out


def _common(prompt: np.ndarray, row: _Row) -> int:
    """Tokens, without its last, that `prompt` shares with a row that starts in this step."""
    if row.cached:
        return 0  # the row was itself copied: the source slot already has any shared prefix
    other = np.array(row.pending, dtype=np.int32)
    width = min(len(prompt) - 1, len(other))
    differs = prompt[:width] != other[:width]
    return int(differs.argmax()) if differs.any() else width
