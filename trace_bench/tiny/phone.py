"""The phone world's tiny agent, which ships with the package: made from its own demonstrations
(`demos`), with figures of the development split, and of synthetic tasks for each capability. No
run's rollout budget is involved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.types import Task
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.envs.toolsandbox.tools.augment import catalog
from trace_bench.policies.local import LocalPolicy
from trace_bench.tiny import Log, MadeSettings, World, demos
from trace_bench.tiny.making import Lessons, ModelBench, Source, card, rate
from trace_bench.tiny.template import build_tokenizer
from trace_bench.tiny.train import SIZES, Corpus, TinyRecipe

SHIPPED = {"size": 1.0, "hasty": 0.0, "demonstrations": 110_000, "passes": 1, "minutes": 1440.0}
"""What `build` sets where it is not given."""
SAMPLES = 128  # synthetic tasks for each capability and each kind of guidance


class Phone(Source):
    """Demonstrations by number, of no task, with words made of the tokenizer's pieces."""

    identity = MappingProxyType({"demonstrations": "the phone world's own"})

    def __init__(self, world: World, settings: MadeSettings) -> None:
        super().__init__(world, settings)
        of_tasks = settings.split or settings.synthetic
        if not isinstance(world.suite, EmbeddedSuite) or of_tasks:
            raise UserError(
                "`build` makes the phone world's agent from demonstrations of no task. Leave out "
                "`env`, `split` and `synthetic`, or use `make`."
            )
        self.right = dict.fromkeys(demos.RIGHT, settings.rare) if settings.rare else demos.RIGHT

    def lessons(self, log: Log) -> Lessons:
        count, tokenizer = self.settings.demonstrations, tokenizer_of()
        pieces = demos.pieces_of(sorted(tokenizer.get_vocab()))
        talks = (demos.demonstration(number, pieces, self.right) for number in range(count))
        return tokenizer, talks, {"demonstrations": count}

    def recipe(self, corpus: Corpus) -> TinyRecipe:
        """A pass has as many tokens as the shipped agent's; longer demonstrations are left out."""
        shipped, count = SIZES[self.settings.size], self.settings.demonstrations
        tokens = shipped.tokens * self.settings.passes * count // shipped.demonstrations
        return replace(shipped, demonstrations=count, tokens=tokens, seed=self.settings.seed)

    def described(self, folder: Path, training: Mapping[str, Any]) -> tuple[Any, str]:
        figures = measure(folder, self.right)
        return figures, self.card(training, figures)

    def card(self, training: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
        """The card as Markdown; `figures`: what `measure` gives."""
        dev, alone = figures["dev"], figures["capabilities"]
        kinds = ("none", "helpful", "irrelevant", "greedy")
        mixture = (
            f"{c} | {p:.2f} | {demos.under_guidance(c, p):.2f}" for c, p in self.right.items()
        )
        learned = f"""{training["report"]["demonstrations"]:,} demonstrations.
Each is an episode of the embedded world, acted by a program, with people, words and wordings that
no split shares, half of the words invented. Seven capabilities are exercised only in a share of the
demonstrations that call for them (tasks with namesakes are drawn three times as often as others, as
telling them apart takes several steps); half of the demonstrations carry guidance lines in the
system prompt, and a line about a capability raises its share:

| capability | share | under guidance |
|---|---|---|
{_lines(mixture)}"""
        capabilities = (
            " | ".join([name, *(f"{row[kind]['success']:.3f}" for kind in kinds)])
            for name, row in alone.items()
        )
        rates = {name: one for name, one in dev.items() if isinstance(one, Mapping)}
        return f"""{card("build", self.world, self.settings, training, learned, rates)}
"plain" are the tasks that need none of the seven capabilities. A greedy episode has
{dev["greedy_tokens"]:.0f} tokens on average, the prompt's and the tools' included.

One capability at a time, on synthetic tasks that need it and no other (as many as there are, up to
{SAMPLES}; temperature 1, last column greedy). The guidance columns give the success under a line
about this capability and under a line about something else:

| capability | no guidance | helpful line | irrelevant line | greedy |
|---|---|---|---|---|
{_lines(capabilities)}

## Limits

It speaks Qwen3's format of tool calls, copies unseen names and numbers, with now and then a wrong
digit or word, and understands only requests worded like those of its demonstrations. It is there so
that methods can be compared on any laptop, and must not be used for anything else. License:
Apache-2.0, as the project.
"""


def tokenizer_of(samples: int = 4000) -> Any:
    """The tokenizer, trained on demonstrations with words of syllables."""
    texts = [
        "".join(text for text, _ in demos.demonstration(10_000_000 + n)) for n in range(samples)
    ]
    return build_tokenizer(texts, [spec.schema for spec in catalog().values()])


def measure(folder: Path, right: Mapping[str, float] = demos.RIGHT) -> dict[str, Any]:
    """All figures of the model in `folder`, JSON-safe; `right`: the shares of demonstrations that
    taught it each capability. About a minute."""
    with closing(LocalPolicy(folder)) as policy:
        bench = ModelBench(policy, World(EmbeddedSuite()), str(folder))
        dev = _dev(bench)
        each = {n: {"taught": share, **_capability(bench, n)} for n, share in right.items()}
        return {"dev": dev, "capabilities": each}


def _dev(bench: ModelBench) -> dict[str, Any]:
    """Success on the development split, greedy and sampled, whole and without rare capabilities."""
    tasks = bench.world.suite.tasks("dev")
    figures: dict[str, Any] = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        episodes = bench.play(tasks, "dev", temperature=temperature)
        plain = [t for task, t in zip(tasks, episodes, strict=True) if not task.data["requires"]]
        figures[name] = rate(episodes)
        figures[f"{name}_plain"] = rate(plain)
        figures[f"{name}_tokens"] = round(sum(t.tokens for t in episodes) / len(episodes), 1)
    return figures


def _capability(bench: ModelBench, name: str) -> dict[str, Any]:
    """Success on tasks that need one capability alone, at temperature 1: without guidance, under a
    line about the capability, and under a line about something else; the last greedy."""
    tasks = _alone(EmbeddedSuite(), name)
    lines = {"none": "", "helpful": demos.GUIDANCE[name][0], "irrelevant": demos.IRRELEVANT[0]}
    rates = {
        kind: rate(bench.play(tasks, "alone", temperature=1.0, guidance=line))
        for kind, line in lines.items()
    }
    return {**rates, "greedy": rate(bench.play(tasks, "alone", temperature=0.0))}


def _alone(suite: EmbeddedSuite, capability: str) -> list[Task]:
    """Synthetic tasks that need this capability and no other rare one."""
    drawn = (suite.synthetic(capability, 90_000 + n) for n in range(4 * SAMPLES))
    return [task for task in drawn if not task.data["contrast"]][:SAMPLES]


def _lines(rows: Iterable[str]) -> str:
    return "\n".join(f"| {row} |" for row in rows)
