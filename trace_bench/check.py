"""Checks that an environment satisfies the protocol. Start here with your own environment. With
`server`, checks that LoRA adapters act at an OpenAI-compatible server (docs/servers.md).

    python -m trace_bench.check env.factory=my_module:my_suite env.options.size=40
    python -m trace_bench.check env=tau2 env.domain=retail sandbox=docker split=test limit=40
    python -m trace_bench.check server=http://127.0.0.1:8000/v1 adapters=FOLDER,FOLDER base=FOLDER

Settings are those of a run (`env`, `env.*`, `sandbox`, ...); `split` (default: the run's training
split) and `limit` (default 16 tasks) are this command's own. Every task goes through every check,
and the run's splits for training, development and evaluation may share no task (unless
protocol=paper); the exit status is 1 when a check fails. When none does, it shows what TRACE can
see in these tasks, and made ones. For a server: folders in PEFT's format; where wanted `base`, the
folder of the base model, `model`, its name there, and `key_env`, the variable with the key.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from textwrap import shorten

from trace_bench.core.beginning import WEIGHTS
from trace_bench.core.command import command, take, told, whole_number
from trace_bench.core.errors import UserError, attempt, outlasting, unknown
from trace_bench.core.factory import elsewhere
from trace_bench.core.protocols import Suite
from trace_bench.core.text import described, visible
from trace_bench.core.types import AdapterRef, Task
from trace_bench.methods.looking.evidence import read
from trace_bench.methods.looking.rules import RULES, seen_in
from trace_bench.methods.making import opening
from trace_bench.play.suites import DEMO, chosen_of, in_both, splits_of, tags, tasks_of

LIMIT = 16
OF_SERVERS = ("server", "adapters", "base", "model", "key_env")
MARKS = {True: "OK", False: "WRONG", None: "not checked"}


@command()
@outlasting()
def main(arguments: Sequence[str]) -> int:
    if told(arguments, __doc__):
        return 0
    _check_name(arguments)
    # What these import may be what a file of the working folder hides.
    from trace_bench.play.contract import Checked, check
    from trace_bench.runner.build import suite_of

    words = list(arguments)
    if any(word.startswith("server=") for word in words):
        return _check_adapters({key: take(words, key) or "" for key in OF_SERVERS}, words)
    split = take(words, "split")
    limit = whole_number("limit", take(words, "limit") or LIMIT)
    with suite_of(words) as (settings, suite):
        env = settings.env
        chosen = chosen_of(suite, split or env.train_split)
        tasks = tasks_of(suite, chosen)[:limit]
        report = check(suite, tasks)
        if settings.protocol == "held_out":
            used = (env.train_split, env.dev_split, settings.evaluation.split, DEMO)
            apart = Checked("the splits share no task (pairs of splits)", *_apart(suite, used))
            report.lines.append(apart)
        where = f"sandbox={settings.sandbox.name}"
        print(f"{suite.name}/{suite.variant} {chosen}, {where}: {len(tasks)} tasks")
        print(report)
        if report.ok:
            lines = attempt(lambda: [*_seen(suite, tasks), *_made(suite)])
            if isinstance(lines, BaseException):
                lines = [f"What TRACE can see: nothing, a replay raised {described(lines)}"]
            print(visible("\n".join(lines)))
        return 0 if report.ok else 1


def _check_adapters(given: Mapping[str, str], others: Sequence[str]) -> int:
    from trace_bench.policies.acting import asked_at

    if others:
        name = others[0].partition("=")[0]
        raise unknown("setting of a server's check", name, OF_SERVERS, name)
    folders = [Path(place) for place in given["adapters"].split(",")]
    for file in (folder / name for folder in folders for name in WEIGHTS):
        if not file.is_file():
            raise UserError(f"{file} does not exist; `adapters` are folders in PEFT's format.")
    server, wrong = given["server"], False
    with asked_at(server, given["key_env"] or None, given["model"], given["base"]) as acting:
        for folder in folders:
            print(f"{folder} at {server}, model {acting.name}:")
            for what, (holds, why) in acting.verdicts(AdapterRef(folder.name, str(folder))):
                print(visible(f"  {MARKS[holds]:<13}{what}: {why}"), flush=True)
                wrong |= holds is False
    return int(wrong)


def _check_name(words: Sequence[str]) -> None:
    """Raises UserError for an environment's file that hides another module."""
    for word in words:
        name = word.removeprefix("env.factory=").partition(":")[0]
        if name != word and Path(f"{name}.py").is_file() and (hidden := elsewhere(name)):
            raise UserError(
                f"{name}.py hides another module, {hidden}, from whatever runs in this folder. "
                "Give the file another name, and change `env.factory`."
            )


def _apart(suite: Suite, used: Sequence[str]) -> tuple[int, list[str]]:
    """How many pairs of the run's splits there are, and those that share tasks."""
    there = splits_of(suite)
    pairs = list(combinations([name for name in dict.fromkeys(used) if name in there], 2))
    return len(pairs), [
        f"{len(shared)} tasks of {second} are in {first} too, such as {shared[0]}"
        for first, second in pairs
        if (shared := in_both(suite, first, second))
    ]


def _seen(suite: Suite, tasks: Sequence[Task]) -> Iterator[str]:
    """What TRACE can see of each capability in these tasks, by its labelling program."""
    if not suite.has(Suite.reference):
        yield "TRACE sees nothing by program without reference(task) (docs/environments.md)."
        return
    yield "What TRACE can see (docs/environments.md):"
    seen = Counter(name for task in tasks for name in seen_in(suite, task))
    wanted = {word for task in tasks for word in tags(task, suite.tag_keys)}
    wanted |= {*suite.capabilities()} if suite.has(Suite.synthetic) else set()
    for name, (_, sign) in RULES.items():
        named = ", though your suite names it" if name in wanted else ""
        count = f"visible in {seen[name]} of {len(tasks)} tasks"
        yield f"  {name}: {count if seen[name] else f'in none{named}, as no reference has {sign}'}"


def _made(suite: Suite) -> Iterator[str]:
    """A task that the suite makes for each capability, and one in which it is not needed."""
    for name in suite.capabilities() if suite.has(Suite.synthetic) else ():
        made = [suite.synthetic(name, seed) for seed in range(LIMIT)]
        plain = [task for task in made if task.data.get("contrast", False)]
        yield f"{LIMIT} tasks made for {name}, of which {len(plain)} are contrast cases:"
        for task in (*[task for task in made if task not in plain][:1], *plain[:1]):
            calls = read(suite.reference(task)).calls if suite.has(Suite.reference) else ()
            asked = shorten(opening(suite, task), 150)
            yield f"  {asked}  [{', '.join(call.name for call in calls)}]"


if __name__ == "__main__":
    sys.exit(main())
