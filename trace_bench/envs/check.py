"""Checks that an environment satisfies the protocol: `check(suite, tasks)`; the command is
`python -m trace_bench.check`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.chat import call_json, make_call
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import (
    Env,
    HasMilestones,
    HasReference,
    Solves,
    Suite,
    make_env,
    perform,
    performed,
)
from trace_bench.core.text import described
from trace_bench.core.types import Message, Step, StopReason, Task, to_json
from trace_bench.envs import members

_MAX_STEPS = 200  # longer episodes count as endless


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
    trajectories and of an agent that sends empty messages. `notes`: what is no fault."""

    lines: list[Checked]
    reference: float | None  # None where there are none
    idle: float
    notes: list[str] = field(default_factory=list)

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
        return "\n".join([*rows, anchors, *(f"note: {note}" for note in self.notes)])


def check(suite: Suite, tasks: Sequence[Task]) -> Report:
    """Runs every check on every task. Raises UserError if there are no tasks."""
    lines, parts = list(_lines(suite, tasks, False)), _parts(suite)
    odd = [fault for part, kind in parts for fault in members.faults(part, kind)]
    lines.insert(0, Checked("members of the classes are what their names say", len(parts), odd))
    best = _mean(suite, tasks, suite.reference) if isinstance(suite, HasReference) else None
    remarks = [note for part, kind in parts for note in members.notes(part, kind)]
    return Report(lines, best, _mean(suite, tasks, idle_actions), remarks)


def repeats(suite: Suite, tasks: Sequence[Task]) -> dict[str, str]:
    """What of an environment repeats itself, measured with these tasks: each promise by its name,
    with the first fault, "" if it is kept."""
    lines = list(_run(suite, tasks, True, _REPEATS))
    return {line.name: "; ".join(line.faults) for line in lines}


def _parts(suite: Suite) -> list[tuple[object, type]]:
    """The suite and, if it can be made, an environment, with what they are."""
    try:
        return [(suite, Suite), (make_env(suite), Env)]
    except Exception:  # reported by every check that makes one
        return [(suite, Suite)]


def first_fault(suite: Suite, tasks: Sequence[Task]) -> str | None:
    """The first failed check and its fault; None if all pass. Stops at the first fault, since each
    may take long."""
    for line in _lines(suite, tasks, True):
        if line.faults:
            return f"{line.name}: failed for {line.faults[0]}"
    return None


def _lines(suite: Suite, tasks: Sequence[Task], stop: bool) -> Iterator[Checked]:
    """One check after the other; with `stop` a check ends at its first fault."""
    if not tasks:
        raise UserError("no tasks to check; change the setting `limit` or `split`")
    known, marked = isinstance(suite, HasReference), isinstance(suite, HasMilestones)
    solving = any(isinstance(part, Solves) for part, _ in _parts(suite))
    checks: list[Check] = [
        ("a task is found again by its id and survives JSON", _task_round_trip),
        ("reset gives messages and valid tool schemas", _reset),
        *([("the reference earns the full score", _reference)] if known else []),
        *([("its solution solves it from anywhere", _solution)] if solving else []),
        *_REPEATS,
        ("bad tool calls are answered with an error message", _bad_calls),
        ("an idle agent's episode ends with a score", _idle),
        *([("its score has the task's milestones, unmet", _milestones)] if marked else []),
        ("close may be called twice", _close),
    ]
    yield from _run(suite, tasks, stop, checks)


Check = tuple[str, Callable[[Suite, Task], None]]


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


def typical_actions(suite: Suite, task: Task) -> Sequence[Message]:
    """The reference trajectory; without one, every tool once without arguments, then a text."""
    if isinstance(suite, HasReference):
        return suite.reference(task)
    names = [tool["function"]["name"] for tool in performed(suite, task)[0].tools]
    return [*map(make_call, names), {"role": "assistant", "content": "That is done."}]


def idle_actions(task: Task) -> list[Message]:
    """Empty messages, enough to end the episode."""
    return [{"role": "assistant", "content": ""}] * _MAX_STEPS


def _mean(
    suite: Suite, tasks: Sequence[Task], actions: Callable[[Task], Sequence[Message]]
) -> float:
    total = 0.0
    for task in tasks:
        try:
            last = performed(suite, task, actions(task))[-1]
        except Exception:  # already reported by a check; here the episode counts as 0
            continue
        total += last.score.similarity if last.score else 0.0
    return total / len(tasks)


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise Broken(text)


def _bytes(steps: Sequence[Step]) -> str:
    return json.dumps(to_json(steps), allow_nan=False)


def _check_messages(step: Step) -> None:
    json.dumps(to_json(step), allow_nan=False)
    for message in step.messages:
        _require(message.get("role") in ("system", "user", "tool"), f"role of {message}")
        _require(isinstance(message.get("content"), str), f"content of {message}")
        if message["role"] == "tool":
            _require(isinstance(message.get("tool_call_id"), str), f"tool_call_id of {message}")
            _require(isinstance(message.get("name"), str), f"name of {message}")
    _require(step.done == (step.stop is not None), "done and stop disagree")
    _require(step.done == (step.score is not None), "done and score disagree")
    if step.score is not None:
        _require(0.0 <= step.score.similarity <= 1.0, f"similarity {step.score.similarity}")
        _require(isinstance(step.score.success, bool), "success is no boolean")
        _require(isinstance(step.stop, StopReason), f"stop {step.stop!r}")


def _task_round_trip(suite: Suite, task: Task) -> None:
    again = suite.task(task.id)
    _require(to_json(again) == to_json(task), "suite.task gives another task")
    _require(json.loads(json.dumps(to_json(task))) == to_json(task), "task data is not plain JSON")


def _reset(suite: Suite, task: Task) -> None:
    [step] = performed(suite, task)
    _check_messages(step)
    _require(not step.done, "done at reset")
    roles = [message["role"] for message in step.messages]
    _require(bool(roles) and roles[-1] == "user", f"opening roles {roles}")
    names = [_check_schema(tool) for tool in step.tools]
    _require(len(set(names)) == len(names), "two tools of one name")


def _check_schema(tool: dict[str, Any]) -> str:
    function = tool["function"]
    parameters = function["parameters"]
    _require(tool["type"] == "function", "type of a tool")
    _require(parameters["type"] == "object", f"parameters of {function['name']}")
    missing = set(parameters.get("required", ())) - set(parameters["properties"])
    _require(not missing, f"required but not described: {sorted(missing)}")
    _require(isinstance(function.get("description"), str), f"description of {function['name']}")
    name: str = function["name"]
    return name


def _reference(suite: Suite, task: Task) -> None:
    assert isinstance(suite, HasReference)
    steps = performed(suite, task, suite.reference(task))
    for step in steps:
        _check_messages(step)
    last = steps[-1]
    _require(last.done, "the episode goes on after the reference")
    _require(last.score is not None and last.score.success, f"score {to_json(last.score)}")


def _solution(suite: Suite, task: Task) -> None:
    """From the start; and after each tool was called once, if the program can."""
    env = make_env(suite)
    assert isinstance(env, Solves)
    names = [tool["function"]["name"] for tool in env.reset(task).tools]
    for before in ([], [make_call(name) for name in names]):
        last = perform(env, task, before)[-1]
        actions = () if last.done else env.solution()
        _require(bool(actions) or bool(before), "solution() has no messages at the start")
        for action in actions:
            last = env.step(action)
        solved = last.score is not None and last.score.success
        _require(solved or not actions, f"score {to_json(last.score)}")


def _same_bytes(suite: Suite, task: Task) -> None:
    actions = typical_actions(suite, task)
    first = _bytes(performed(suite, task, actions))
    _require(first == _bytes(performed(suite, task, actions)), "two environments differ")


def _reset_discards(suite: Suite, task: Task) -> None:
    actions = typical_actions(suite, task)
    fresh = _bytes(performed(suite, task, actions))
    env = make_env(suite)
    perform(env, task, actions[:-1])  # left in the middle
    _require(fresh == _bytes(perform(env, task, actions)), "after an unfinished episode")
    _require(fresh == _bytes(perform(env, task, actions)), "after a finished episode")


def _independent(suite: Suite, task: Task) -> None:
    """Compares an episode beside another, idle one with the same episode alone."""
    actions = typical_actions(suite, task)
    alone = _bytes(performed(suite, task, actions))
    env, other = make_env(suite), make_env(suite)
    steps, others = [env.reset(task)], [other.reset(task)]
    for action in actions:
        if not others[-1].done:
            others.append(other.step({"role": "assistant", "content": "?"}))
        if not steps[-1].done:
            steps.append(env.step(action))
    _require(alone == _bytes(steps), "an episode changes with another one beside it")


_REPEATS: tuple[Check, ...] = (
    ("the same task and actions give the same bytes", _same_bytes),
    ("reset discards the earlier episode", _reset_discards),
    ("environments do not touch each other", _independent),
)


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
        try:
            step = env.step({"role": "assistant", "content": "", "tool_calls": [call]})
        except Exception as error:
            raise Broken(f"{described(error)}, after the call {json.dumps(call)}") from error
        _check_messages(step)
        _require(len(step.messages) == 1, f"{len(step.messages)} answers to {call}")
        answer = step.messages[0]
        _require(answer["role"] == "tool" and answer["tool_call_id"] == call["id"], f"{answer}")
        _require(
            _is_error(answer["content"]), f"no error in {answer['content']!r} to {json.dumps(call)}"
        )


def _is_error(answer: str) -> bool:
    """Whether a tool's answer has the form "...Error: ..." or "Error while ...: ..."."""
    return re.search(r"Error(?: [\w ]+)?: ", answer) is not None


def _idle(suite: Suite, task: Task) -> None:
    steps = performed(suite, task, idle_actions(task))
    _require(steps[-1].done, f"no end after {_MAX_STEPS} steps")
    _check_messages(steps[-1])


def _milestones(suite: Suite, task: Task) -> None:
    assert isinstance(suite, HasMilestones)
    listed = list(suite.milestones(task))
    _require(bool(listed), "milestones() names none")
    _require(not any(m.hit or m.similarity for m in listed), f"milestones() has met ones: {listed}")
    score = performed(suite, task, idle_actions(task))[-1].score
    found = [] if score is None else [(m.name, m.tells) for m in score.milestones]
    wanted = [(m.name, m.tells) for m in listed]
    _require(found == wanted, f"milestones() gives {wanted}, the score has {found}")


def _close(suite: Suite, task: Task) -> None:
    env = make_env(suite)
    env.reset(task)
    env.close()
    env.close()
