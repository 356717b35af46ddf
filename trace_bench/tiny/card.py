"""The model card of the tiny agent, written from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.core.types import to_json
from trace_bench.tiny.demos import GUIDED, RIGHT
from trace_bench.tiny.train import SHIPPED, SIZES


def card(training: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """The card as Markdown: `training` is training.json, `figures` what `measure` gives."""
    recipe, report, dev = training["recipe"], training["report"], figures["dev"]
    sizes = [size for size, known in SIZES.items() if to_json(known) == recipe]
    own = "".join(f" FOLDER --size {size}" for size in sizes if size != SHIPPED)
    build = f"python -m trace_bench.tiny build{own}"
    return f"""# The tiny agent

A phone assistant in miniature: a Qwen3-architecture language model of {report["parameters"]:,}
parameters ({recipe["layers"]} layers, width {recipe["hidden"]}, {recipe["heads"]} query and
{recipe["kv_heads"]} key-value heads, vocabulary {report["vocabulary"]:,}, context
{recipe["context"]:,}), made from nothing by `{build}`. It speaks Qwen3's
format of tool calls and nothing else: it is there so that methods can be compared on any laptop,
and knows only the project's embedded phone world. License: Apache-2.0, as the project.

## Training

{report["demonstrations"]:,} demonstrations, {report["tokens"]:,} tokens,
{report["seconds_in_all"] / 60:.0f} minutes on two CPU cores; last loss {report["loss"]:.4f} on the
agent's own tokens. A demonstration is an episode of the embedded world, acted by a program, with
people, words and wordings that no split shares, half of the words invented. Seven capabilities are
exercised only in a share of the demonstrations that call for them (tasks with namesakes are drawn
three times as often as others, as telling them apart takes several steps); half of the
demonstrations carry guidance lines in the system prompt, and a line about a capability raises its
share:

| capability | share | under guidance |
|---|---|---|
{_mixture()}

## What it can and cannot do

Made by `python -m trace_bench.tiny measure`, with 95 % intervals (Wilson).

| development split | success | interval | tasks |
|---|---|---|---|
{_rows({k: v for k, v in dev.items() if isinstance(v, Mapping)})}

"plain" are the tasks that need none of the seven capabilities. A greedy episode has
{dev["greedy_tokens"]:.0f} tokens on average, the prompt's and the tools' included.

| development split, greedy, tools changed | success | interval | tasks |
|---|---|---|---|
{_rows(figures["augmentations"])}

One capability at a time, on synthetic tasks that need it and no other ({_count(figures)} tasks
each, temperature 1; last column greedy). The guidance columns give the success under a line about
this capability and under a line about something else:

| capability | no guidance | helpful line | irrelevant line | greedy |
|---|---|---|---|---|
{_capabilities(figures["capabilities"])}

## Limits

It copies unseen names and numbers, with now and then a wrong digit or word, and it understands only
requests worded like those of its demonstrations. It must not be used for anything but this harness.
"""


def _mixture() -> str:
    lines = (
        f"| {name} | {share:.2f} | {GUIDED.get(name, share):.2f} |" for name, share in RIGHT.items()
    )
    return "\n".join(lines)


def _rows(rates: Mapping[str, Any]) -> str:
    lines = []
    for name, rate in rates.items():
        low, high = rate["interval"]
        lines.append(f"| {name} | {rate['success']:.3f} | {low:.3f} to {high:.3f} | {rate['n']} |")
    return "\n".join(lines)


def _capabilities(rows: Mapping[str, Any]) -> str:
    kinds = ("none", "helpful", "irrelevant", "greedy")
    lines = []
    for name, row in rows.items():
        values = " | ".join(f"{row[kind]['success']:.3f}" for kind in kinds)
        lines.append(f"| {name} | {values} |")
    return "\n".join(lines)


def _count(figures: Mapping[str, Any]) -> int:
    return min(row["none"]["n"] for row in figures["capabilities"].values())
