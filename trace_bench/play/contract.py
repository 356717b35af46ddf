"""Checks that an environment satisfies the protocol: `check(suite, tasks)`; the command is
`python -m trace_bench.check`."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from trace_bench.core.chat import arguments_of, call_json, make_call, text_message
from trace_bench.core.decode import step_of
from trace_bench.core.errors import UserError, attempt
from trace_bench.core.protocols import Env, Part, Suite, make_env, members, perform, performed
from trace_bench.core.text import described
from trace_bench.core.types import Message, Step, Task, to_json

T = TypeVar("T")
_MAX_STEPS = 200  # longer episodes count as endless
_ALIKE = 0.85  # difflib's ratio; `referense` and `reference` have 0.89


class Broken(Exception):
    """A check has failed."""


@dataclass
class Checked:
    """One check: how often it was made, and each failure of it in words."""

    name: str
    times: int
    faults: Sequence[str]


@dataclass
class Report:
    """The results of all checks, and the upper and lower bound: the mean score of the reference
    trajectories and of an agent that sends empty messages."""

    lines: list[Checked]
    reference: float | None  # None where there are none
    idle: float

    @property
    def ok(self) -> bool:
        return not any(line.faults for line in self.lines)

    def __str__(self) -> str:
        rows = []
        for line in self.lines:
            passed = max(0, line.times - len(line.faults))
            rows.append(f"{'FAILED' if line.faults else 'ok':7}{passed:5}  {line.name}")
            rows += [f"{'':14}{fault}" for fault in line.faults[:5]]
        best = "none" if self.reference is None else f"{self.reference:.3f}"
        return "\n".join([*rows, f"mean similarity: reference {best}, idle {self.idle:.3f}"])


def check(suite: Suite, tasks: Sequence[Task]) -> Report:
    """Runs every check on every task. Raises UserError if there are no tasks."""
    parts = _parts(suite)
    shape = [fault for part, kind in parts for fault in _misshapen(part, kind)]
    lines = [Checked("members of the classes are what their names say", len(parts), shape)]
    for name, run in _checks(suite, tasks):
        faults = [fault for task in tasks if (fault := _fault(run, suite, task, task.id))]
        lines.append(Checked(name, len(tasks), faults))
    if suite.has(Suite.synthetic):
        lines.append(_generated(suite))
    best = _mean(suite, tasks, suite.reference) if suite.has(Suite.reference) else None
    return Report(lines, best, _mean(suite, tasks, idle_actions))


def _generated(suite: Suite) -> Checked:
    named = attempt(lambda: list(suite.capabilities()))
    cases = {} if isinstance(named, BaseException) else {f"synthetic({n!r}, 0)": n for n in named}
    faults = [fault for n, one in cases.items() if (fault := _fault(_generates, suite, one, n))]
    if isinstance(named, BaseException) or not named:
        why = described(named) if isinstance(named, BaseException) else "it names none"
        faults = [f"capabilities(): {why}"]
    name = "capabilities() and synthetic() give tasks, the same for a seed"
    return Checked(name, len(cases), faults)


def first_fault(suite: Suite, tasks: Sequence[Task]) -> str | None:
    """The first failed check and its fault; None if all pass. Stops at the first fault, since each
    may take long."""
    for name, run in _checks(suite, tasks):
        for task in tasks:
            if fault := _fault(run, suite, task, task.id):
                return f"{name}: failed for {fault}"
    return None


def _fault(run: Callable[[Suite, T], None], suite: Suite, case: T, name: str) -> str | None:
    """What a check finds wrong with a case, if anything; any error of an environment is."""
    try:
        run(suite, case)
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return None


def _parts(suite: Suite) -> list[tuple[Part, type]]:
    """The suite and, if it can be made, an environment, with what they are."""
    try:
        return [(suite.unwrapped, Suite), (make_env(suite), Env)]
    except Exception:  # reported by every check that makes one
        return [(suite.unwrapped, Suite)]


def idle_actions(task: Task) -> list[Message]:
    """Empty messages, enough to end the episode."""
    return [text_message("")] * _MAX_STEPS


def _mean(
    suite: Suite, tasks: Sequence[Task], actions: Callable[[Task], Sequence[Message]]
) -> float:
    """The mean score; an episode that a check reports as faulty counts as 0."""
    total = 0.0
    for task in tasks:
        with suppress(Exception):
            score = step_of(performed(suite, task, actions(task))[-1]).score
            total += score.similarity if score is not None else 0.0
    return total / len(tasks)


# -- episodes --------------------------------------------------------------------------------------


def _checks(
    suite: Suite, tasks: Sequence[Task]
) -> Iterable[tuple[str, Callable[[Suite, Task], None]]]:
    if not tasks:
        raise UserError("no tasks to check; change the setting `limit` or `split`")
    yield "a task is found again by its id and survives JSON", _task_round_trip
    yield "reset gives messages and valid tool schemas", _reset
    if suite.has(Suite.reference):
        yield "the reference earns the full score", _reference
    if any(part.has(Env.solution) for part, kind in _parts(suite) if kind is Env):
        yield "its solution solves it from anywhere", _solution
    yield "the same task and actions give the same bytes", _repeats
    yield "bad tool calls are answered with an error message", _bad_calls
    yield "an idle agent's episode ends with a score", _idle


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise Broken(text)


def _check_step(step: Step) -> None:
    """What the boundary of a run checks, and that the step agrees with itself."""
    step_of(step)
    roles = [message["role"] for message in step.messages]
    _require("assistant" not in roles, f"a message of the agent in {step.messages}")
    _require(step.done == (step.stop is not None), "done and stop disagree")
    _require(step.done == (step.score is not None), "done and score disagree")


def _task_round_trip(suite: Suite, task: Task) -> None:
    _require(to_json(suite.task(task.id)) == to_json(task), "suite.task gives another task")
    _require(json.loads(json.dumps(to_json(task))) == to_json(task), "task data is not plain JSON")


def _reset(suite: Suite, task: Task) -> None:
    """`close` may be called twice."""
    with closing(make_env(suite)) as env:
        step = env.reset(task)
        env.close()
    _check_step(step)
    _require(not step.done, "done at reset")
    roles = [message["role"] for message in step.messages]
    _require(bool(roles) and roles[-1] == "user", f"opening roles {roles}")
    for tool in step.tools:
        name, parameters = tool["function"]["name"], tool["function"]["parameters"]
        _require(tool["type"] == "function", f"type of {name}")
        _require(parameters["type"] == "object", f"parameters of {name}")
        missing = arguments_of(parameters).undescribed
        _require(not missing, f"required but not described by {name}: {missing}")
        _require(isinstance(tool["function"].get("description"), str), f"description of {name}")
    names = [tool["function"]["name"] for tool in step.tools]
    _require(len(set(names)) == len(names), "two tools of one name")


def _reference(suite: Suite, task: Task) -> None:
    steps = performed(suite, task, suite.reference(task))
    for step in steps:
        _check_step(step)
    score = steps[-1].score
    _require(steps[-1].done, "the episode goes on after the reference")
    _require(score is not None and score.success, f"score {to_json(score)}")


def _solution(suite: Suite, task: Task) -> None:
    """From the start; and after each tool was called once, if the program can."""
    env = make_env(suite)
    names = [tool["function"]["name"] for tool in env.reset(task).tools]
    for before in ([], [make_call(name) for name in names]):
        last = perform(env, task, before)[-1]
        actions = () if last.done else env.solution()
        _require(bool(actions) or bool(before), "solution() has no messages at the start")
        for action in actions:
            last = env.step(action)
        solved = last.score is not None and last.score.success
        _require(solved or not actions, f"score {to_json(last.score)}")


def _repeats(suite: Suite, task: Task) -> None:
    """The same episode again, in an environment of its own, after an episode that was left and
    after one that ended, and beside an idle one: of the reference; without one, every tool once
    without arguments, then a text."""
    if suite.has(Suite.reference):
        actions = list(suite.reference(task))
    else:
        tools = performed(suite, task)[0].tools
        actions = [make_call(tool["function"]["name"]) for tool in tools]
        actions.append(text_message("That is done."))
    first = to_json(performed(suite, task, actions))
    _require(first == to_json(performed(suite, task, actions)), "two environments differ")
    env, other = make_env(suite), make_env(suite)
    perform(env, task, actions[:-1])
    _require(first == to_json(perform(env, task, actions)), "after an unfinished episode")
    _require(first == to_json(perform(env, task, actions)), "after a finished episode")
    steps, idle = [env.reset(task)], other.reset(task)
    for action in actions:
        if not idle.done:
            idle = other.step(text_message("?"))
        if not steps[-1].done:
            steps.append(env.step(action))
    _require(first == to_json(steps), "an episode changes with another one beside it")


def _bad_calls(suite: Suite, task: Task) -> None:
    """Of an unknown tool, with no JSON, no object, an unknown argument, and of no function."""
    env = make_env(suite)
    bad = [("no_such_tool", "{}")]
    for tool in env.reset(task).tools[:1]:
        name = tool["function"]["name"]
        bad += [(name, "{"), (name, "[1]"), (name, '{"no_such_argument": 1}')]
    calls = [call_json(f"bad_{i}", *call) for i, call in enumerate(bad)]
    calls.append({"id": f"bad_{len(bad)}", "type": "function"})
    for call in calls:
        sent = json.dumps(call)
        try:
            step = env.step(text_message("", [call]))
        except Exception as error:
            raise Broken(f"{described(error)}, after the call {sent}") from error
        _check_step(step)
        _require(len(step.messages) == 1, f"{len(step.messages)} answers to {call}")
        answer = step.messages[0]
        _require(answer["role"] == "tool" and answer["tool_call_id"] == call["id"], f"{answer}")
        # "...Error: ..." or "Error while ...: ..."
        is_error = re.search(r"Error(?: [\w ]+)?: ", answer["content"]) is not None
        _require(is_error, f"no error in {answer['content']!r} to {sent}")


def _idle(suite: Suite, task: Task) -> None:
    last = performed(suite, task, idle_actions(task))[-1]
    _require(last.done, f"no end after {_MAX_STEPS} steps")
    _check_step(last)


def _generates(suite: Suite, capability: str) -> None:
    """A capability has training tasks that can be begun."""
    task = suite.synthetic(capability, 0)
    _require(to_json(task) == to_json(suite.synthetic(capability, 0)), "two tasks for a seed")
    _task_round_trip(suite, task)
    _reset(suite, task)


# -- what the members of a person's class are to the pipeline --------------------------------------


def _misshapen(part: Part, kind: type) -> Iterable[str]:
    """Members of a class that inherits `kind` which cannot be what they should be, or look like a
    misspelt one."""
    cls, declared = type(part).__name__, members(kind)
    classes = [c for c in reversed(type(part).__mro__) if c is not object]
    theirs: dict[str, Any] = {}
    for one in classes:
        if not one.__module__.startswith("trace_bench.core.protocols"):
            theirs |= {n: v for n, v in vars(one).items() if not n.startswith("_")}
    absent = [name for name in declared if name not in theirs]
    for name in dict.fromkeys([*theirs, *vars(part)]):
        if name in declared:
            if why := _unlike(getattr(part, name, None), kind, name):
                yield f"{cls}.{name} {why}"
        elif name in theirs:
            for like in get_close_matches(name, absent, 1, _ALIKE):
                if callable(theirs[name]) is callable(vars(kind).get(like)):
                    yield (
                        f"{cls}.{name} looks like `{like}` of trace_bench.{kind.__name__}; give "
                        "it another name if it is not"
                    )


def _unlike(value: object, kind: type, name: str) -> str | None:
    """Why a member is not what the kind declares; None if it is."""
    declared = getattr(kind, name, None)
    if not callable(declared):
        if declared is None or isinstance(value, type(declared)):
            return None
        return f"is {value!r:.80}; {kind.__name__} wants {inspect.get_annotations(kind)[name]}"
    wanted = list(inspect.signature(declared).parameters)[1:]
    call = f"{kind.__name__} wants {name}({', '.join(wanted)})"
    if not callable(value):
        return f"is no method; {call}"
    if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value):
        return f"is async, and nothing awaits it; {call}"
    try:
        inspect.signature(value).bind(*wanted)
    except TypeError:
        return f"takes other arguments; {call}"
    except ValueError:  # built in: it does not say
        pass
    return None
