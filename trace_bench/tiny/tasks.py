"""Agents that are shown the tasks of their world, for any suite that has solutions: those of the
split `demo` or, where there is none, every second training task, which a run then leaves out of its
training tasks.

In half of the demonstrations other names stand for some words that the agent has read and written
(`renamed`): else it learns the names that there are by heart, and not to copy those of new tasks.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from trace_bench.core.chat import read_call
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Env, RunContext, Suite, make_env
from trace_bench.core.run_files import DEMONSTRATED
from trace_bench.core.store import canonical, stable_seed
from trace_bench.core.types import Message, Task
from trace_bench.play.demonstrations import Demonstration, demonstrations
from trace_bench.play.steps import close
from trace_bench.play.suites import DEMO, content, mark, name_of, splits_of, tasks_of
from trace_bench.settings.identity import of_part, parts_of
from trace_bench.settings.schema import Settings
from trace_bench.tiny import MODEL_FOLDER, Log, MadeSettings, World
from trace_bench.tiny.making import Lessons, Source, card, make_in, on_development_tasks
from trace_bench.tiny.template import build_tokenizer, common_words, render
from trace_bench.tiny.train import SIZES, Corpus, Talk, TinyRecipe

BEGUN = 1.0  # million parameters: the phone world's agent, which copies names and numbers already
BEGUN_LR = 0.001  # what it knows is to stay
STEPS = 250  # of a training, at least: short demonstrations are learned in smaller batches
FEW = 200  # tasks from which unseen names are hardly learned
WRITTEN = '<tool_call>{"name", "arguments", true, false, null}'  # words of every call
RENAMED = 0.5  # share of demonstrations with other names, and of their names
NAME = re.compile(r"[A-Za-z]{3,}|[0-9]{2,}")
VALUE = re.compile(r"\w*[0-9][\w.]*")  # in a message; in a call any word may be one


class Tasks(Source):
    """Demonstrations of a split's tasks."""

    def __init__(self, world: World, settings: MadeSettings) -> None:
        super().__init__(world, settings)
        self.split, self.tasks = _shown(world, settings)
        ids = {task.id: mark(task) for task in self.tasks}
        self.start = MODEL_FOLDER if settings.size == BEGUN else None
        self.demonstrated = {"suite": name_of(world.suite), "split": self.split, "tasks": ids}

    def in_turn(self, stream: str) -> Iterator[Demonstration]:
        """The demonstrations, in which other names stand for some; `stream` names the random
        numbers for that. Raises UserError if there is none."""
        world, seed, count = self.world, self.settings.seed, self.settings.demonstrations
        tasks = _with_made(world, self.tasks, count) if self.settings.synthetic else self.tasks
        playing = demonstrations(
            world.suite, tasks, count,
            seed=seed, max_turns=world.max_turns, hasty=self.settings.hasty,
        )  # fmt: skip
        names: dict[str, None] = {}
        for n, shown in enumerate(playing):
            yield renamed(shown, Random(stable_seed(stream, seed, n)), names)

    def lessons(self, log: Log) -> Lessons:
        count = self.settings.demonstrations
        shown_episodes: list[Demonstration] = []
        for shown in self.in_turn("renamed"):
            shown_episodes.append(shown)
            if len(shown_episodes) % 200 == 0:
                log(f"{len(shown_episodes)}/{count} demonstrations")
        talks = [pieces_of(shown) for shown in shown_episodes]
        turns = [own for shown in shown_episodes for own in shown.learned]
        tasks = len({shown.task for shown in shown_episodes})
        if tasks < FEW:
            log(f"note: demonstrations of {tasks} tasks only; names in other tasks are hardly "
                f"learned from fewer than {FEW}")  # fmt: skip
        facts = {
            "demonstrations": len(shown_episodes),
            "failed": count - len(shown_episodes),
            "tasks": tasks,
            "turns": len(turns),
            "mistakes": turns.count(False),
        }
        return self._tokenizer(shown_episodes, talks), talks, facts

    def _tokenizer(self, shown_episodes: Sequence[Demonstration], talks: Sequence[Talk]) -> Any:
        """That of the model to begin with, or one of the world's own words."""
        if self.start is not None:
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(str(self.start))
        texts: dict[str, list[str]] = defaultdict(list)
        for shown, talk in zip(shown_episodes, talks, strict=True):
            texts[shown.task] += [text for text, _ in talk]
        tools = {str(tool): tool for shown in shown_episodes for tool in shown.tools}
        every = ["".join(text for text, _ in talk) for talk in talks]
        return build_tokenizer(every, list(tools.values()), words=common_words(texts.values()))

    def recipe(self, corpus: Corpus) -> TinyRecipe:
        """Rows hold the longest demonstration, batches as many tokens as ever or fewer, for `STEPS`
        steps; the context has room for an episode that is longer than all of them."""
        recipe, longest = SIZES[self.settings.size], int(np.diff(corpus.starts).max())
        row = max(recipe.row, 64 * math.ceil(longest / 64))
        tokens = self.settings.passes * len(corpus.ids)
        return replace(
            recipe,
            demonstrations=len(corpus.starts) - 1,
            tokens=tokens,
            context=max(1024, 1 << math.ceil(math.log2(longest * 1.25))),
            row=row,
            rows=max(1, min(recipe.row * recipe.rows, tokens // STEPS) // row),
            seed=self.settings.seed,
            adam_lr=recipe.adam_lr if self.start is None else BEGUN_LR,
        )

    def described(self, folder: Path, training: Mapping[str, Any]) -> tuple[Any, str]:
        world, settings, facts = self.world, self.settings, training["shown"]
        second = "Every second is of a task that the suite makes itself.\n"
        synthetic = second if settings.synthetic else ""
        half = self.split == world.train and settings.split is None
        kept = f"every second task of {self.split}, " if half else ""
        episodes = f"{facts['tasks']:,} tasks ({kept}split {self.split})"
        begun = "nothing" if self.start is None else "the phone world's agent"
        learned = f"""{facts["demonstrations"]:,} demonstrations of {episodes}, played in the world
itself. {settings.hasty:.0%} leave a call of the solution out; the others are successful
({facts["failed"]} were not and are not among them).
{synthetic}{facts["mistakes"]:,} of the agent's {facts["turns"]:,} turns are mistakes, which
are put right and not learned. A run leaves these tasks out of its training tasks
(`{DEMONSTRATED}`); none is in {world.dev} or {world.test}."""
        rates = on_development_tasks(folder, world)
        return rates, card("make", world, settings, training, learned, rates, begun)


def make_for(
    chosen: Settings,
    settings: MadeSettings,
    log: Log,
    *,
    source: type[Source] = Tasks,
    look: bool = False,
) -> Path:
    """The folder of the agent for the world of a run's settings. `look`: only if it is there."""
    facts = of_part(chosen.env, parts_of(chosen)["env"])
    facts = {k: v for k, v in facts.items() if k != "train_tasks"}  # a run's own
    with world_of(chosen) as world:
        return make_in(world, facts, settings, log, source=source, look=look)


@contextmanager
def world_of(chosen: Settings) -> Iterator[World]:
    """The world of a run's settings, closed at the end."""
    env, policy = chosen.env, chosen.policy
    context = RunContext(dev_split=env.dev_split, max_turns=policy.max_turns)
    splits = (env.train_split, env.dev_split, env.eval_split)
    with closing(parts_of(chosen)["env"].make(context)) as suite:
        yield World(suite, *splits, policy.max_turns, policy.max_tokens)


def _shown(world: World, settings: MadeSettings) -> tuple[str, list[Task]]:
    """The split and its tasks to demonstrate. UserError for held-out ones, or no solutions."""
    suite = world.suite
    close(env := make_env(suite))
    if not suite.has(Suite.reference) and not env.has(Env.solution):
        raise UserError(
            f"{name_of(suite)} has neither references (Suite.reference) nor a program that "
            "solves it (Env.solution), so nothing can be demonstrated. docs/own_world.md explains "
            "it. Change `env`."
        )
    there = splits_of(suite)
    split = settings.split or (DEMO if DEMO in there else world.train)
    if split not in there:
        raise unknown("split", split, there, "split")
    tasks = tasks_of(suite, split)[:: 2 if settings.split is None and split == world.train else 1]
    contents = {task.id for task in tasks} | {content(task) for task in tasks}
    for held_out in (world.dev, world.test):
        if held_out not in there:
            raise unknown("split", held_out, there, "env.dev_split` or `env.eval_split")
        if shared := [
            task.id for task in tasks_of(suite, held_out) if {task.id, content(task)} & contents
        ]:
            raise UserError(
                f"split={split} has {len(shared)} tasks of {held_out}, such as {shared[0]}, and no "
                "demonstration may be of a held-out task. Change `split`."
            )
    return split, tasks


def _with_made(world: World, tasks: Sequence[Task], count: int) -> list[Task]:
    """A task that the suite makes after each of these, for so many demonstrations. Raises UserError
    if it makes none, or one that is held out."""
    suite = world.suite
    makers = list[Callable[[int], Task]]()
    if suite.has(Suite.synthetic):
        makers += [partial(suite.synthetic, name) for name in suite.capabilities()]
    if not makers:
        raise UserError(
            f"{name_of(suite)} makes no tasks (Suite.synthetic). Set `synthetic` to false."
        )
    own_tasks = [makers[n % len(makers)](n // len(makers)) for n in range((count + 1) // 2)]
    held_out = {content(t) for split in (world.dev, world.test) for t in tasks_of(suite, split)}
    if shared := [task.id for task in own_tasks if content(task) in held_out]:
        raise UserError(
            f"{name_of(suite)} makes tasks of {world.dev} or {world.test}, such as {shared[0]}, "
            "and no demonstration may be of a held-out task. Set `synthetic` to false."
        )
    return [task for pair in zip(cycle(tasks), own_tasks, strict=False) for task in pair]


def pieces_of(demonstration: Demonstration) -> list[tuple[str, bool]]:
    """The conversation as pieces: (text, whether it is learned). What an agent that left a call
    out could not know is not: it would learn to invent values where it is to copy them."""
    learned, pieces, read = iter(demonstration.learned), list[tuple[str, bool]](), WRITTEN
    for text, own in render(demonstration.messages, demonstration.tools):
        if own and next(learned):
            word = NAME if '"arguments"' in text else VALUE
            pieces += [(text, True)] if demonstration.whole else _split(text, word, read)
        else:
            pieces.append((text, False))
        read += text
    return pieces


def _split(text: str, word: re.Pattern[str], read: str) -> list[tuple[str, bool]]:
    """The text in pieces, of which words that were not `read` are not learned."""
    pieces, end = list[tuple[str, bool]](), 0
    for match in word.finditer(text):
        if match[0] not in read:
            pieces += [(text[end : match.start()], True), (match[0], False)]
            end = match.end()
    return [piece for piece in [*pieces, (text[end:], True)] if piece[0]]


def renamed(demonstration: Demonstration, rng: Random, names: dict[str, None]) -> Demonstration:
    """The demonstration with other names in place of some, the same wherever they stand: half of
    them are names of earlier demonstrations (`names`, to which its own are added), half invented. A
    name is a word or a number in the arguments of a call that the agent has read before; one in a
    tool's definition, such as a value to choose from, is none, and neither is one of JSON's own."""
    earlier, others = [*names], dict[str, str]()
    read, tools = set[str](), {*NAME.findall(str(demonstration.tools)), "true", "false", "null"}
    for message in demonstration.messages:
        if message["role"] != "assistant":
            read.update(NAME.findall(str(message["content"])))
            continue
        for call in message.get("tool_calls") or ():
            arguments = read_call(call)[1]
            for word in NAME.findall(canonical(list(arguments.values()))):
                if word in read and word not in tools and word not in others:
                    others[word] = _other(word, earlier, rng) if rng.random() < RENAMED else word
    names.update(dict.fromkeys(word for word in others if not word.isdigit()))
    if rng.random() >= RENAMED or not any(word != other for word, other in others.items()):
        return demonstration
    messages = tuple(_with_words(message, others) for message in demonstration.messages)
    return replace(demonstration, messages=messages)


def _other(word: str, earlier: Sequence[str], rng: Random) -> str:
    """A known name, or one of two or three syllables, written as the word is; digits for digits."""
    if word.isdigit():
        return str(rng.randint(1, 9)) + "".join(rng.choices("0123456789", k=len(word) - 1))
    if earlier and rng.random() < 0.5:
        new = rng.choice(earlier).lower()
    else:
        syllables = (rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
        new = "".join(syllables)[: rng.randint(3, 6)]
    return new.upper() if word.isupper() else new.capitalize() if word[0].isupper() else new


def _with_words(message: Message, others: Mapping[str, str]) -> Message:
    def changed(text: str) -> str:
        return NAME.sub(lambda word: others.get(word[0], word[0]), text)

    out = {**message, "content": changed(message.get("content") or "")}
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [
            {**c, "function": {**c["function"], "arguments": changed(c["function"]["arguments"])}}
            for c in calls
        ]
    return out
