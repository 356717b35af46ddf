"""Making: synthetic tasks of a capability, self-tested before use (step 4 of TRACE; other methods
make them too).

The suite brings the generator (`Suite.synthetic`). This module draws seeds from it, keeps the
wanted share of contrast cases, and throws away what fails the self-test: the reference must earn
the full reward, doing nothing must not. No rollout is spent here, since no agent acts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat, zip_longest

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Need, Suite, performed
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Message, Positive, Score, Share, Task

FULL = 1.0 - 1e-6  # the environments' own tolerance for a perfect score
IDLE: Message = {"role": "assistant", "content": ""}
MAX_STEPS = 200  # ends the self-test of an environment that never says done
MAX_LEVEL = 3
REWARD = "similarity"  # on these tasks: their own, with levels
LOOKED_AT = 200  # tasks without a contrast case among them: the generator makes none


GENERATOR = Need(
    "env",
    Suite.synthetic,
    "docs/environments.md",
    "With method.synthesis=select the training tasks are trained on instead; with "
    "llm.generator.by=endpoint a model writes environments.",
)


IN_CONTEXT = Need(
    "env",
    Suite.in_context,
    "docs/environments.md",
    "With method.in_context=0 every made task needs its capability alone.",
)


@dataclass(frozen=True)
class TaskSettings:
    """Of what is trained on synthetic tasks."""

    synthetic_tasks: Positive = 256
    """Distinct tasks of each environment (ours; published: a fresh seed for every group)."""
    in_context: Share = 0.0
    """Part of them, contrast cases left aside, in the form of the target's own tasks, which need
    other capabilities too, while this one is rewarded most (ours; published: all)."""

    @property
    def also_needs(self) -> tuple[Need, ...]:
        """Of the suite, beside the generator."""
        return (IN_CONTEXT,) if self.in_context else ()


@dataclass(frozen=True)
class Mix:
    """How seeds are chosen. `contrast`: share of contrast cases, in which the capability must not
    be over-used. `level` in -3 ... 3 makes the tasks longer or shorter: of 2^|level| draws the one
    with the longest (or shortest) reference is taken. It changes which tasks come up, never their
    rules."""

    contrast: float = 0.20
    level: int = 0


def seeded(suite: Suite, seed: int) -> Task:
    """The task of a seed of a suite that is made of a program text: it has one capability only."""
    return suite.synthetic("", seed)


def play(suite: Suite, task: Task, replies: Sequence[Message], then: Message) -> Score | None:
    """Score of an episode of `replies`, and `then` until its end; None if it never ends."""
    return performed(suite, task, script(replies, then))[-1].score


def script(replies: Sequence[Message], then: Message) -> Iterator[Message]:
    return islice(chain(replies, repeat(then)), MAX_STEPS)


def self_test(suite: Suite, task: Task) -> str | None:
    """What is wrong with the task or with its reference, if it has one; None: it is fit for use."""
    if suite.has(Suite.reference):
        reference = play(suite, task, suite.reference(task), IDLE)
        if reference is None or reference.similarity < FULL or not reference.success:
            return f"the reference earns {reference and reference.similarity}"
    idle = play(suite, task, (), IDLE)
    if idle is None or idle.similarity >= FULL:
        return f"doing nothing earns {idle and idle.similarity}"
    return None


def draw(
    suite: Suite,
    name: str,
    count: int,
    mix: Mix,
    seed: int,
    label: str,
    setting: str = "method.synthetic_tasks",
    in_context: float = 0.0,
) -> tuple[Task, ...]:
    """`count` accepted tasks in a seeded order. `label` names the stream of seeds ("train",
    "calibration/1"): different labels give different tasks, the same label the same ones. A
    generator that makes no contrast cases gives none. `setting`: what `count` follows from;
    `in_context`: which part of the others is (`TaskSettings`).
    UserError when more seeds are refused than accepted."""
    make = partial(suite.synthetic, name)
    contrast = round(count * mix.contrast)
    want = {True: contrast, False: count - contrast}
    kept: dict[bool, list[Task]] = {True: [], False: []}
    pools: dict[bool, list[Task]] = {True: [], False: []}
    refused, last, seen = 0, "", set[str]()
    for n in range(LOOKED_AT + 100 * count):
        if n == LOOKED_AT and not (pools[True] or kept[True]):
            want = {True: 0, False: count}
        if all(len(kept[side]) >= want[side] for side in want):
            break
        number = stable_seed(seed, "trace", "synthetic", name, label, n) % 2**31
        task = make(number)
        side = bool(task.data.get("contrast", False))
        if in_context and not side and random.Random(number).random() < in_context:
            task = suite.in_context(name, number)
        if task.id in seen or len(kept[side]) >= want[side]:
            continue
        seen.add(task.id)
        pools[side].append(task)
        if len(pools[side]) < 2 ** abs(mix.level):
            continue
        chosen, pools[side] = _by_length(suite, pools[side], mix.level), []
        wrong = self_test(suite, chosen)
        if wrong is None:
            kept[side].append(chosen)
        else:
            refused, last = refused + 1, f"{chosen.id}: {wrong}"
            if refused > count:
                break
    tasks = kept[False] + kept[True]
    if len(tasks) < count:
        why = f"refused by the self-test: {refused} ({last or 'none'})"
        if pools[True] + kept[True] and not (pools[False] or kept[False] or refused):
            why = "the generator marks all as `contrast`, so none needs the capability"
        raise UserError(
            f"only {len(tasks)} of {count} synthetic tasks of {name} ({want[True]} contrast cases) "
            f"could be made; {why}. Lower `{setting}` if the generator has no more."
        )
    random.Random(stable_seed(seed, "trace", "order", name, label)).shuffle(tasks)
    return tuple(tasks)


def _by_length(suite: Suite, pool: Sequence[Task], level: int) -> Task:
    """The task with the longest (level > 0) or shortest reference; the first one without any."""
    if len(pool) == 1 or not suite.has(Suite.reference):
        return pool[0]
    lengths = [len(suite.reference(task)) for task in pool]
    return pool[lengths.index(max(lengths) if level > 0 else min(lengths))]


def opening(suite: Suite, task: Task) -> str:
    """The user's first message, or "" where there is none."""
    heard = (m for m in performed(suite, task)[0].messages if m.get("role") == "user")
    return str(next(heard, {}).get("content") or "")


def interleave(lists: Sequence[Sequence[Task]]) -> tuple[Task, ...]:
    """Round-robin, so that every prefix holds all capabilities alike."""
    return tuple(t for t in chain.from_iterable(zip_longest(*lists)) if t is not None)
