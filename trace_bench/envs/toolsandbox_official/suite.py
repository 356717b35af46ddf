"""The official scenarios as tasks, and one episode of them. The benchmark has no train and test
splits: every split holds all scenarios, so training and reporting use the same tasks
(`protocol=paper`)."""

from __future__ import annotations

import copy
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from trace_bench.core.chat import answer_call, read_call
from trace_bench.core.errors import unknown
from trace_bench.core.protocols import Ask, RunContext, Suite, Typical
from trace_bench.core.types import Message, Milestone, Score, Step, StopReason, Task, Tool
from trace_bench.envs import CarefulAsk, LiveEnv, task_named
from trace_bench.envs.toolsandbox.tools.augment import Augmentation
from trace_bench.envs.toolsandbox_official.stage import COMMIT, RAPID_KEY, SUFFIXES, Scenarios

MOST_CALLS = 4  # in one message: the package tries them in every order, which grows as n!
# Some error messages contain memory addresses, which differ between processes.
_ADDRESS = re.compile(r"at 0x[0-9A-Fa-f]+")


class OfficialEnv(LiveEnv):
    """One episode of a scenario. `ask`: asks the role `user` with the scenario's instructions;
    None: the conversation ends at the agent's first text (for lower bounds and tests).

    Departures from the official loop: a tool call that is unknown or malformed is answered with an
    error message instead of ending the scenario with 0, and so are more than `MOST_CALLS` at once.
    """

    def __init__(self, stage: Scenarios, ask: Ask | None) -> None:
        self._stage = stage
        self._ask = CarefulAsk(ask, ()) if ask is not None else None

    def reset(self, task: Task) -> Step:
        name = task.data["scenario"]
        self._scenario = self._stage.scenarios[name]
        self.context = copy.deepcopy(self._scenario.starting_context)
        self._ids = random.Random(name)
        self._calls = 0
        with self._stage.playing(self, self._ids):
            self._run_opening()
            rows = self._rows()
            tools = self._tools()
        opening = _opening(rows)
        self._limit = self._scenario.max_messages + len(rows) - 1
        # The conversation so far, and for every row of the message log the index of its message.
        self._messages = len(opening)
        self._places = [self._messages - 1] * len(rows)
        self._live = True
        return Step(tuple(opening), tools)

    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        if calls:
            return self._after(self._execute(calls))
        self._say("AGENT", "USER", text)
        if len(self._seen()) > self._limit:
            return self.end(StopReason.TURN_LIMIT)
        reply = None if self._ask is None else self._ask(user_view(self._seen()), False)
        if reply is None or "end_conversation" in reply:
            self._end_conversation()
            return self.end(StopReason.DONE)
        self._say("USER", "AGENT", reply)
        return self._after(({"role": "user", "content": reply},))

    def _after(self, messages: tuple[Message, ...]) -> Step:
        if len(self._seen()) > self._limit:
            return self.end(StopReason.TURN_LIMIT, messages)
        return Step(messages)

    def score(self) -> Score:
        """The package's own evaluation of the conversation as it stands."""
        evaluation, most = self._scenario.evaluation, self._scenario.max_messages
        with self._stage.playing(self, self._ids):
            evaluated = evaluation.evaluate(execution_context=self.context, max_turn_count=most)
        similarity = float(evaluated.similarity)
        details = {
            "milestone_similarity": float(evaluated.milestone_similarity),
            "minefield_similarity": float(evaluated.minefield_similarity),
        }
        wanted, mines = evaluation.milestone_matcher, evaluation.minefield_matcher
        return Score(
            min(max(similarity, 0.0), 1.0),
            similarity > PERFECT,
            details,
            milestones_of(wanted, evaluated.milestone_mapping, self._places),
            milestones_of(mines, evaluated.minefield_mapping, self._places, minefields=True),
        )

    # -- inside the package's global state ---------------------------------------------------------

    def _run_opening(self) -> None:
        """Runs the system messages to the execution environment, which import the tools."""
        from tool_sandbox.roles.execution_environment import ExecutionEnvironment

        for index, row in enumerate(self._rows()):
            if (row["sender"], row["recipient"]) == ("SYSTEM", "EXECUTION_ENVIRONMENT"):
                ExecutionEnvironment().respond(ending_index=index)

    def _rows(self) -> list[dict[str, Any]]:
        from tool_sandbox.common.execution_context import DatabaseNamespace, get_current_context

        database = get_current_context().get_database(
            DatabaseNamespace.SANDBOX,
            get_all_history_snapshots=True,
            drop_sandbox_message_index=False,
        )
        return [dict(row) for row in database.to_dicts()]

    def _seen(self) -> list[dict[str, Any]]:
        with self._stage.playing(self, self._ids):
            return self._rows()

    def _tools(self) -> tuple[Tool, ...]:
        from tool_sandbox.common.execution_context import RoleType, get_current_context
        from tool_sandbox.common.tool_conversion import convert_to_openai_tool

        available = get_current_context().get_available_tools(scrambling_allowed=True)
        order = get_current_context().tool_allow_list or list(available)
        names = {tool.__name__: offered for offered, tool in available.items()}
        offered = [names[name] for name in dict.fromkeys(order) if name in names]
        tools = []
        for name in offered:
            if RoleType.AGENT in getattr(available[name], "visible_to", (RoleType.AGENT,)):
                tools.append(
                    json.loads(json.dumps(convert_to_openai_tool(available[name], name=name)))
                )
        return tuple(tools)

    def _say(self, sender: str, recipient: str, content: str) -> None:
        with self._stage.playing(self, self._ids):
            self._add({"sender": sender, "recipient": recipient, "content": content})
        self._places.append(self._messages)
        self._messages += 1

    def _add(self, *messages: Mapping[str, Any]) -> None:
        from tool_sandbox.common.message_conversion import Message as Said
        from tool_sandbox.roles.execution_environment import ExecutionEnvironment

        ExecutionEnvironment.add_messages([Said(**message) for message in messages])

    def _execute(self, calls: Sequence[Any]) -> tuple[Message, ...]:
        """Executes tool calls; returns the answers in the order of the calls."""
        from tool_sandbox.roles.execution_environment import ExecutionEnvironment

        answers: list[Message] = [answer_call(call, "") for call in calls]
        said: list[dict[str, Any]] = []
        places: dict[str, int] = {}
        with self._stage.playing(self, self._ids):
            for place, call in enumerate(calls):
                self._calls += 1
                mark = f"call_{self._calls}"
                code, fault = self._code(call, mark)
                if fault or len(said) >= MOST_CALLS:
                    fault = fault or f"Error: more than {MOST_CALLS} calls"
                    answers[place] = answer_call(call, fault)
                    continue
                places[mark] = place
                schema = {
                    "openai_tool_call_id": mark,
                    "openai_function_name": call["function"]["name"],
                }
                way = {"sender": "AGENT", "recipient": "EXECUTION_ENVIRONMENT"}
                said.append({**way, "content": code, **schema})
            if said:
                before = len(self._rows())
                self._add(*said)
                ExecutionEnvironment().respond()
                for row in self._rows()[before:]:
                    result = 0  # after the message with the calls
                    if row["sender"] == "EXECUTION_ENVIRONMENT":
                        place = places[row["openai_tool_call_id"]]
                        steady = _ADDRESS.sub("at 0x0", row["content"])
                        answers[place] = answer_call(calls[place], steady)
                        result = 1 + place
                    self._places.append(self._messages + result)
        self._messages += 1 + len(calls)
        return tuple(answers)

    def _code(self, call: Any, mark: str) -> tuple[str, str]:
        """(Python code that the package runs for a call, error message or "")."""
        from tool_sandbox.common.execution_context import get_current_context

        try:
            name, arguments = read_call(call)
        except ValueError as error:
            return "", f"ValueError: {error}"
        context = get_current_context()
        available = context.get_available_tools(scrambling_allowed=True)
        if name not in available or name == "end_conversation":
            return "", f"NameError: there is no tool {name}"
        name = context.get_execution_facing_tool_name(name)
        return (
            f"{mark}_parameters = {arguments!r}\n"
            f"{mark}_response = {name}(**{mark}_parameters)\n"
            f"print(repr({mark}_response))"
        ), ""

    def _end_conversation(self) -> None:
        from tool_sandbox.roles.execution_environment import ExecutionEnvironment

        code = "end_parameters = {}\nend_response = end_conversation(**end_parameters)\n"
        code += "print(repr(end_response))"
        with self._stage.playing(self, self._ids):
            self._add({"sender": "USER", "recipient": "EXECUTION_ENVIRONMENT", "content": code})
            ExecutionEnvironment().respond()


def user_view(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The conversation from the simulated user's side: the agent's messages have the role `user`.
    Includes the few-shot conversations of the scenario."""
    out = []
    for row in rows:
        way = (row["sender"], row["recipient"])
        if way == ("SYSTEM", "USER"):
            out.append({"role": "system", "content": row["content"]})
        elif way == ("AGENT", "USER"):
            out.append({"role": "user", "content": row["content"]})
        elif way == ("USER", "AGENT"):
            out.append({"role": "assistant", "content": row["content"]})
        elif way == ("USER", "EXECUTION_ENVIRONMENT"):
            out.append({"role": "assistant", "content": "end_conversation"})
    return out


def _opening(rows: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages that the agent sees at the start."""
    return [
        {"role": "system" if row["sender"] == "SYSTEM" else "user", "content": row["content"]}
        for row in rows
        if row["recipient"] == "AGENT"
        and (row["visible_to"] is None or "AGENT" in row["visible_to"])
    ]


PERFECT = 1 - 1e-9
LONGEST = 300  # characters of a name


def milestones_of(
    matcher: Any, mapping: Mapping[int, Any], places: Sequence[int], minefields: bool = False
) -> tuple[Milestone, ...]:
    """The result of each milestone of a matcher. `mapping`: number to (row of the message log,
    similarity); `places`: the index of each row's message, the last one's for rows after it. A
    minefield counts as hit at any similarity above 0."""
    out = []
    for number, milestone in enumerate(matcher.milestones):
        row, similarity = mapping.get(number, (None, 0.0))
        similarity = min(max(float(similarity), 0.0), 1.0)
        hit = similarity > 0.0 if minefields else similarity > PERFECT
        met = similarity > 0.0 and row is not None
        place = places[min(int(row), len(places) - 1)] if met else None
        out.append(Milestone(_name(milestone), similarity, hit, place, _tells(milestone)))
    return tuple(out)


def _name(milestone: Any) -> str:
    """A short name: the milestone's constraints that have values (guards have none)."""
    parts = []
    for constraint in milestone.snapshot_constraints:
        rows = _rows(constraint)
        if rows:
            measure = constraint.snapshot_constraint
            measure = measure.func if isinstance(measure, partial) else measure
            what = str(measure.__name__).removesuffix("_similarity")
            listed = "; ".join(
                ", ".join(f"{key}={_short(value)}" for key, value in row.items()) for row in rows
            )
            parts.append(f"{constraint.database_namespace} {what}: {listed}")
    text = " and ".join(parts) or "nothing else changed"
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _tells(milestone: Any) -> str | None:
    """The text that the agent must send to the user, for a milestone that requires one."""
    for row in (row for c in milestone.snapshot_constraints for row in _rows(c)):
        way, text = (str(row.get("sender")), str(row.get("recipient"))), row.get("content")
        if way == ("AGENT", "USER") and isinstance(text, str):
            return text
    return None


def _rows(constraint: Any) -> list[dict[str, Any]]:
    target = constraint.target_dataframe
    return [] if target is None else list(target.to_dicts())


def _short(value: Any) -> str:
    """A value as short text; a tool trace (JSON in a string) as a call."""
    try:
        call: Any = json.loads(value) if isinstance(value, str) else None
        arguments = ", ".join(f"{k}={v!r}" for k, v in call["arguments"].items())
        return f"{call['tool_name']}({arguments})"
    except (ValueError, TypeError, KeyError, AttributeError):
        return repr(value)


SPLITS = ("train", "dev", "test", "base")


class OfficialSuite(Suite):
    """The benchmark has milestones but no reference trajectories. The simulated user is the model
    behind `run.ask`, or a script if there is none. Scenarios that need RapidAPI are left out unless
    its key is given.

    `source`: a checkout of github.com/apple/ToolSandbox (env.suite=official only)."""

    name, variant = "toolsandbox", "official"
    image = "toolsandbox"
    tag_keys = ("categories",)
    typical = Typical(8, 3000, 80, 2)  # a guess from the scenarios

    def __init__(
        self, run: RunContext, augmentation: Augmentation = "none", source: str | None = None
    ) -> None:
        self._user = "scripted" if run.ask is None else "llm"
        self._augmentation, self._ask = augmentation, run.ask
        self._stage = Scenarios(source)
        keyed = RAPID_KEY in os.environ
        self._left_out = [] if keyed else [b for b in self._stage.bases if self._stage.needs_key(b)]

    def asks_user(self) -> bool:
        return self._user == "llm"

    def about(self) -> dict[str, Any]:
        return {
            "data": f"apple/ToolSandbox {COMMIT}",
            "user": self._user,
            "scenarios": len(self._stage.bases),
            "left_out": len(self._left_out),
            "why_left_out": f"they need {RAPID_KEY}" if self._left_out else "",
        }

    def splits(self) -> Sequence[str]:
        return SPLITS

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS, "env.train_split or evaluation.split")
        out = []
        for number, base in enumerate(self._stage.bases):
            if base not in self._left_out:
                name = base + SUFFIXES[self._augmentation]
                data = {"scenario": name, "categories": self._stage.categories(name)}
                task_id = f"toolsandbox/official/{split}/{number:04d}"
                out.append(Task(task_id, "toolsandbox", split, 0, data))
        return out

    def task(self, task_id: str) -> Task:
        return task_named(self, task_id)

    def make(self) -> OfficialEnv:
        return OfficialEnv(self._stage, self._ask)
