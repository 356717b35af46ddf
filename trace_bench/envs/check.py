"""Checks that an environment satisfies the protocol: `check(suite, tasks)`; the command is
`python -m trace_bench.check`."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from trace_bench.core.chat import call_json, make_call, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import (
    Env,
    Part,
    Suite,
    make_env,
    members,
    perform,
    performed,
)
from trace_bench.core.text import described
from trace_bench.core.types import Message, Step, StopReason, Task, to_json

_MAX_STEPS = 200  # longer episodes count as endless
_ALIKE = 0.85  # difflib's ratio; `referense` and `reference` have 0.89


class Broken(Exception):
    """A check has failed."""


@dataclass
class Checked:
    """One check over all tasks; `faults`: the tasks that failed it, and how."""

    name: str
    passed: int = 0
    faults: list[str] = field(default_factory=list)


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
        rows = [
            f"{'ok' if not line.faults else 'FAILED':7}{line.passed:5}  {line.name}"
            + "".join(f"\n{'':14}{fault}" for fault in line.faults[:5])
            for line in self.lines
        ]
        best = "none" if self.reference is None else f"{self.reference:.3f}"
        anchors = f"mean similarity: reference {best}, idle {self.idle:.3f}"
        return "\n".join([*rows, anchors])


def check(suite: Suite, tasks: Sequence[Task]) -> Report:
    """Runs every check on every task. Raises UserError if there are no tasks."""
    parts = _parts(suite)
    classes = Checked("members of the classes are what their names say", len(parts))
    classes.faults = [fault for part, kind in parts for fault in _misshapen(part, kind)]
    lines = [classes, *_lines(suite, tasks, False)]
    if suite.has(Suite.synthetic):
        lines.append(_generates(suite))
    best = _mean(suite, tasks, suite.reference) if suite.has(Suite.reference) else None
    return Report(lines, best, _mean(suite, tasks, idle_actions))


def repeats(suite: Suite, tasks: Sequence[Task]) -> Checked:
    """Whether episodes repeat themselves, measured with these tasks up to the first fault."""
    return next(_run(suite, tasks, True, [REPEATS]))


def first_fault(suite: Suite, tasks: Sequence[Task]) -> str | None:
    """The first failed check and its fault; None if all pass. Stops at the first fault, since each
    may take long."""
    for line in _lines(suite, tasks, True):
        if line.faults:
            return f"{line.name}: failed for {line.faults[0]}"
    return None


# -- episodes --------------------------------------------------------------------------------------

Check = tuple[str, Callable[[Suite, Task], None]]


def _lines(suite: Suite, tasks: Sequence[Task], stop: bool) -> Iterator[Checked]:
    """One check after the other; with `stop` a check ends at its first fault."""
    if not tasks:
        raise UserError("no tasks to check; change the setting `limit` or `split`")
    checks: list[Check] = [
        ("a task is found again by its id and survives JSON", _task_round_trip),
        ("reset gives messages and valid tool schemas", _reset),
    ]
    if suite.has(Suite.reference):
        checks.append(("the reference earns the full score", _reference))
    if any(part.has(Env.solution) for part, kind in _parts(suite) if kind is Env):
        checks.append(("its solution solves it from anywhere", _solution))
    checks.append(REPEATS)
    checks.append(("bad tool calls are answered with an error message", _bad_calls))
    checks.append(("an idle agent's episode ends with a score", _idle))
    if suite.has(Suite.milestones):
        checks.append(("its score has the task's milestones, unmet", _milestones))
    checks.append(("close may be called twice", _close))
    yield from _run(suite, tasks, stop, checks)


def _run(
    suite: Suite, tasks: Sequence[Task], stop: bool, checks: Sequence[Check]
) -> Iterator[Checked]:
    for name, run in checks:
        line = Checked(name)
        for task in tasks:
            try:
                run(suite, task)
                line.passed += 1
            except Exception as error:  # a check must survive any error of an environment
                line.faults.append(f"{task.id}: {type(error).__name__}: {error}")
                if stop:
                    break
        yield line


def _parts(suite: Suite) -> list[tuple[Part, type]]:
    """The suite and, if it can be made, an environment, with what they are."""
    try:
        return [(suite.unwrapped, Suite), (make_env(suite), Env)]
    except Exception:  # reported by every check that makes one
        return [(suite.unwrapped, Suite)]


def typical_actions(suite: Suite, task: Task) -> Sequence[Message]:
    """The reference trajectory; without one, every tool once without arguments, then a text."""
    if suite.has(Suite.reference):
        return suite.reference(task)
    names = [tool["function"]["name"] for tool in performed(suite, task)[0].tools]
    return [*map(make_call, names), text_message("That is done.")]


def idle_actions(task: Task) -> list[Message]:
    """Empty messages, enough to end the episode."""
    return [text_message("")] * _MAX_STEPS


def _mean(
    suite: Suite, tasks: Sequence[Task], actions: Callable[[Task], Sequence[Message]]
) -> float:
    """The mean score; an episode that a check reports as faulty counts as 0."""
    total = 0.0
    for task in tasks:
        try:
            score = performed(suite, task, actions(task))[-1].score
            total += score.similarity if score is not None else 0.0
        except Exception:
            continue
    return total / len(tasks)


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise Broken(text)


def _bytes(steps: Sequence[Step]) -> str:
    return json.dumps(to_json(steps), allow_nan=False)


def _check_step(step: Step) -> None:
    if step.score is not None:
        value, success = step.score.similarity, step.score.success
        number = type(value) in (int, float) and math.isfinite(value) and 0 <= value <= 1
        _require(number, f"similarity is {value!r}; allowed: a number from 0 to 1")
        _require(isinstance(success, bool), f"success is {success!r}; allowed: True or False")
        _require(isinstance(step.stop, StopReason), f"stop {step.stop!r}")
    json.dumps(to_json(step), allow_nan=False)
    for message in step.messages:
        _require(message.get("role") in ("system", "user", "tool"), f"role of {message}")
        needed = ("content", "tool_call_id", "name") if message["role"] == "tool" else ("content",)
        for key in needed:
            _require(isinstance(message.get(key), str), f"{key} of {message}")
    _require(step.done == (step.stop is not None), "done and stop disagree")
    _require(step.done == (step.score is not None), "done and score disagree")


def _task_round_trip(suite: Suite, task: Task) -> None:
    _require(to_json(suite.task(task.id)) == to_json(task), "suite.task gives another task")
    _require(json.loads(json.dumps(to_json(task))) == to_json(task), "task data is not plain JSON")


def _reset(suite: Suite, task: Task) -> None:
    [step] = performed(suite, task)
    _check_step(step)
    _require(not step.done, "done at reset")
    roles = [message["role"] for message in step.messages]
    _require(bool(roles) and roles[-1] == "user", f"opening roles {roles}")
    names = [_check_schema(tool) for tool in step.tools]
    _require(len(set(names)) == len(names), "two tools of one name")


def _check_schema(tool: dict[str, Any]) -> str:
    function = tool["function"]
    name: str = function["name"]
    parameters = function["parameters"]
    _require(tool["type"] == "function", "type of a tool")
    _require(parameters["type"] == "object", f"parameters of {name}")
    missing = set(parameters.get("required", ())) - set(parameters["properties"])
    _require(not missing, f"required but not described: {sorted(missing)}")
    _require(isinstance(function.get("description"), str), f"description of {name}")
    return name


def _reference(suite: Suite, task: Task) -> None:
    assert suite.has(Suite.reference)
    steps = performed(suite, task, suite.reference(task))
    for step in steps:
        _check_step(step)
    score = steps[-1].score
    _require(steps[-1].done, "the episode goes on after the reference")
    _require(score is not None and score.success, f"score {to_json(score)}")


def _solution(suite: Suite, task: Task) -> None:
    """From the start; and after each tool was called once, if the program can."""
    env = make_env(suite)
    assert env.has(Env.solution)
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
    after one that ended, and beside an idle one."""
    actions = typical_actions(suite, task)
    first = _bytes(performed(suite, task, actions))
    _require(first == _bytes(performed(suite, task, actions)), "two environments differ")
    env, other = make_env(suite), make_env(suite)
    perform(env, task, actions[:-1])
    _require(first == _bytes(perform(env, task, actions)), "after an unfinished episode")
    _require(first == _bytes(perform(env, task, actions)), "after a finished episode")
    steps, idle = [env.reset(task)], other.reset(task)
    for action in actions:
        if not idle.done:
            idle = other.step(text_message("?"))
        if not steps[-1].done:
            steps.append(env.step(action))
    _require(first == _bytes(steps), "an episode changes with another one beside it")


REPEATS: Check = ("the same task and actions give the same bytes", _repeats)


def _bad_calls(suite: Suite, task: Task) -> None:
    env = make_env(suite)
    # Unknown tool, no JSON, no object, unknown argument, no function at all.
    bad = [("no_such_tool", "{}")]
    for tool in env.reset(task).tools[:1]:
        name = tool["function"]["name"]
        bad += [(name, "{"), (name, "[1]"), (name, '{"no_such_argument": 1}')]
    calls = [call_json(f"bad_{i}", *call) for i, call in enumerate(bad)]
    calls.append({"id": f"bad_{len(bad)}", "type": "function"})
    for call in calls:
        sent = json.dumps(call)
        try:
            step = env.step({"role": "assistant", "content": "", "tool_calls": [call]})
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


def _milestones(suite: Suite, task: Task) -> None:
    assert suite.has(Suite.milestones)
    listed = list(suite.milestones(task))
    _require(bool(listed), "milestones() names none")
    _require(not any(m.hit or m.similarity for m in listed), f"milestones() has met ones: {listed}")
    score = performed(suite, task, idle_actions(task))[-1].score
    scored = [] if score is None else [(m.name, m.tells) for m in score.milestones]
    wanted = [(m.name, m.tells) for m in listed]
    _require(scored == wanted, f"milestones() gives {wanted}, the score has {scored}")


def _close(suite: Suite, task: Task) -> None:
    with closing(make_env(suite)) as env:
        env.reset(task)
        env.close()


def _generates(suite: Suite) -> Checked:
    """Whether each capability has training tasks that can be begun."""
    line = Checked("capabilities() and synthetic() give tasks, the same for a seed")
    name = "capabilities()"
    try:
        for capability in suite.capabilities():
            name = f"synthetic({capability!r}, 0)"
            task = suite.synthetic(capability, 0)
            _require(
                to_json(task) == to_json(suite.synthetic(capability, 0)), "two tasks for a seed"
            )
            _task_round_trip(suite, task)
            _reset(suite, task)
            line.passed += 1
    except Exception as error:
        line.faults.append(f"{name}: {type(error).__name__}: {error}")
    return line


# -- what the members of a person's class are to the pipeline --------------------------------------


def _misshapen(part: object, kind: type) -> list[str]:
    """Members of a class that inherits `kind` which cannot be what they should be, or look like a
    misspelt one."""
    cls, theirs, declared = type(part).__name__, _members(type(part)), members(kind)
    faults = []
    for name in dict.fromkeys([*theirs, *vars(part)]):
        if name in declared:
            if why := _fault(getattr(part, name, None), kind, name):
                faults.append(f"{cls}.{name} {why}")
        elif name in theirs:
            for like in get_close_matches(
                name, [n for n in declared if n not in theirs], 1, _ALIKE
            ):
                if callable(theirs[name]) is callable(vars(kind).get(like)):
                    faults.append(
                        f"{cls}.{name} looks like `{like}` of trace_bench.{kind.__name__}; give "
                        "it another name if it is not"
                    )
    return faults


def _members(cls: type) -> dict[str, Any]:
    """The public members that are not the protocols'."""
    theirs = [c for c in reversed(cls.__mro__) if c is not object]
    theirs = [c for c in theirs if not c.__module__.startswith("trace_bench.core.protocols")]
    return {n: v for c in theirs for n, v in vars(c).items() if not n.startswith("_")}


def _fault(value: object, home: type, name: str) -> str | None:
    """Why a member is not what `home` declares; None if it is."""
    declared = getattr(home, name, None)
    if not callable(declared):
        hint = get_type_hints(home)[name]
        return None if _fits(value, hint) else f"is {value!r:.80}; {home.__name__} wants {hint}"
    wanted = list(inspect.signature(declared).parameters)[1:]
    call = f"{home.__name__} wants {name}({', '.join(wanted)})"
    if not callable(value):
        return f"is no method; {call}"
    try:
        inspect.signature(value).bind(*wanted)
    except TypeError:
        return f"takes other arguments; {call}"
    except ValueError:  # built in: it does not say
        pass
    return None


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if hint is NoneType:
        return value is None
    return hint is Any or isinstance(value, get_origin(hint) or hint)
