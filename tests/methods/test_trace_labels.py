"""The labelling program: every capability on hand-made conversations, then on flawed programs in
the real world, then on nonsense."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_lab import SHAPES, act_out

from trace_bench.core.types import (
    Message,
    Milestone,
    Score,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from trace_bench.envs.toolsandbox.scenarios import CAPABILITIES, EmbeddedSuite
from trace_bench.envs.toolsandbox.scenarios.build import build
from trace_bench.envs.toolsandbox.scenarios.pools import Words
from trace_bench.methods.looking import rules as labelling
from trace_bench.methods.looking.capabilities import VOCABULARY, Label
from trace_bench.methods.looking.evidence import Heard, facts_of, parts, read

NA, PRESENT, LACKING = Label.NA, Label.PRESENT, Label.LACKING
HIDDEN = ("requires", "shape", "kinds")
ANNA = {"person_id": "aa11bb22", "name": "Anna Berg", "phone_number": "+12125550101"}
ANNE = {"person_id": "cc33dd44", "name": "Anna Holm", "phone_number": "+12125550199"}


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def say(text: str) -> list[Message]:
    return [{"role": "assistant", "content": text}]


def call(name: str, result: Any, /, **arguments: Any) -> list[Message]:
    """A tool call and what came back; a string result starting with an error's name is an error."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    content = result if isinstance(result, str) and "Error:" in result else json.dumps(result)
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "name": name, "content": content},
    ]


def chat(*parts: list[Message]) -> list[Message]:
    return [message for part in parts for message in part]


@dataclass(frozen=True)
class View:
    """A task as the program knows it: its reference, and what its score is made from."""

    reference: Heard
    milestones: tuple[str | None, ...] = ()  # what each wants the user to be told
    forbidden: bool = False


def view(
    *parts: list[Message], milestones: tuple[str | None, ...] = (), forbidden: bool = False
) -> View:
    return View(read(chat(*parts)), milestones, forbidden)


def label(task: View, trajectory: Trajectory) -> dict[str, Label]:
    """Labels of a trajectory whose score has the task's milestones, met as it says. Another number
    of milestones than the task has: the score has none."""
    score = trajectory.score
    assert score is not None
    hits = score.milestones if len(score.milestones) == len(task.milestones) else ()
    milestones = tuple(
        replace(m, tells=tells) for m, tells in zip(hits, task.milestones, strict=False)
    )
    minefields = (Milestone("never this", 0.0, False),) if task.forbidden else ()
    score = replace(score, milestones=milestones, minefields=minefields)
    return labelling.label(task.reference, replace(trajectory, score=score))


def acted(
    *parts: list[Message],
    hits: tuple[float, ...] = (),
    stop: StopReason = StopReason.DONE,
    malformed: str | None = None,
) -> Trajectory:
    turns: list[Turn] = []
    pending: list[Message] = []
    for message in chat(*parts):
        if message["role"] == "assistant":
            turns.append(Turn(tuple(pending), message, malformed=malformed))
            pending = []
        else:
            pending.append(message)
    milestones = tuple(Milestone(f"number {n}", h, h == 1.0) for n, h in enumerate(hits))
    score = Score(sum(hits) / len(hits) if hits else 0.0, False, milestones=milestones)
    return Trajectory("t", 0, "base", (), tuple(turns), tuple(pending), stop, score)


ADDED = None  # a milestone that is not about telling
SEND = {"phone_number": "+12125550101", "content": "hi"}
OFF = "ConnectionError: Cellular service is off"
ASKED = user('text +12125550101 "hi"')
FAILED = call("send", OFF, **SEND)
REPAIR = view(
    ASKED, call("send", OFF, **SEND), call("set_cellular", None, on=True),
    call("send", "m1", **SEND), say("The message is sent."),
)  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "want"),
    [
        ([FAILED, call("set_cellular", None, on=True), call("send", "m1", **SEND)], PRESENT),
        ([FAILED, say("Sorry, cellular service is off.")], LACKING),
        ([call("send", OFF, phone_number="5", content="hi"), say("Sorry.")], NA),  # other arguments
        ([say("Sorry.")], NA),
    ],
)  # fmt: skip
def test_recovers(agent: list, want: Label) -> None:
    assert label(REPAIR, acted(ASKED, *agent))["recovers_from_errors"] is want


def test_an_error_that_the_reference_cannot_mend_either_is_no_lack() -> None:
    stuck = view(ASKED, call("send", OFF, **SEND), say("Sorry, cellular service is off."))
    labels = label(stuck, acted(ASKED, call("send", OFF, **SEND), say("No.")))
    assert labels["recovers_from_errors"] is NA


IF_ON = user('if wifi is on, text +12125550101 "hi"')
HOLDS = view(IF_ON, call("get_wifi", True), call("send", "m1", **SEND), say("Sent."))
REFUSED = view(IF_ON, call("get_wifi", False), say("Wifi is off."), forbidden=True)


@pytest.mark.parametrize(
    ("task", "agent", "want"),
    [
        (HOLDS, [call("get_wifi", True), call("send", "m1", **SEND)], PRESENT),
        (HOLDS, [call("send", "m1", **SEND)], LACKING),
        (HOLDS, [call("send", "m1", **SEND), call("get_wifi", True)], LACKING),  # too late
        (HOLDS, [say("Done.")], NA),
        (REFUSED, [call("get_wifi", False), say("Wifi is off.")], PRESENT),
        (REFUSED, [call("send", "m1", **SEND)], LACKING),
        (REFUSED, [call("get_wifi", False), call("send", "m1", **SEND)], LACKING),
        (REFUSED, [say("No.")], NA),
    ],
)
def test_checks_preconditions(task: View, agent: list, want: Label) -> None:
    labels = label(task, acted(IF_ON, *agent))
    assert labels["checks_preconditions"] is want
    assert labels["declines_when_impossible"] is NA


def test_a_status_that_was_asked_for_is_no_precondition() -> None:
    status = view(user("is wifi on"), call("get_wifi", True), say("Wifi is on."))
    assert label(status, acted(call("set_wifi", None, on=True)))["checks_preconditions"] is NA


TEXT_HER = user("text +12125550101")
MISSING = view(
    TEXT_HER, say("What should the message say?"), user("hi"), call("send", "m1", **SEND),
    say("Sent."),
)  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "want"),
    [
        ([say("What should it say?"), user("hi"), call("send", "m1", **SEND)], PRESENT),
        ([call("send", "m1", phone_number="+12125550101", content="hello")], LACKING),
        ([call("send", "m1", **SEND), say("What should it say?")], LACKING),  # too late
        ([say("Sorry.")], LACKING),
        ([call("look", "ValueError: no"), say("Sorry.")], NA),  # never got that far
        ([], NA),
    ],
)
def test_asks_when_information_is_missing(agent: list, want: Label) -> None:
    labels = label(MISSING, acted(TEXT_HER, *agent))
    assert labels["asks_when_information_is_missing"] is want
    assert labels["disambiguates"] is NA


REMOVE = user("delete Anna from my contacts")
BOTH = call("search", [ANNA, ANNE], name="Anna")
WHICH = say("Which one do you mean: Anna Berg or Anna Holm?")
AMBIGUOUS = view(
    REMOVE, BOTH, WHICH, user("Anna Holm"), call("remove", None, person_id="cc33dd44"), say("Gone.")
)
CHOICE = view(user("delete Anna Holm"), BOTH, call("remove", None, person_id="cc33dd44"))


@pytest.mark.parametrize(
    ("task", "agent", "want"),
    [
        (AMBIGUOUS, [BOTH, WHICH, user("Anna Holm")], PRESENT),
        (AMBIGUOUS, [BOTH, call("remove", None, person_id="aa11bb22")], LACKING),
        (AMBIGUOUS, [BOTH, say("Gone.")], LACKING),
        (AMBIGUOUS, [say("Gone.")], NA),
        (CHOICE, [BOTH, call("remove", None, person_id="cc33dd44")], PRESENT),
        (CHOICE, [BOTH, call("remove", None, person_id="aa11bb22")], LACKING),
        (CHOICE, [BOTH, call("remove", None, person_id="ffff0000")], NA),  # garbled, not chosen
    ],
)
def test_disambiguates(task: View, agent: list, want: Label) -> None:
    labels = label(task, acted(REMOVE, *agent))
    assert labels["disambiguates"] is want
    assert labels["asks_when_information_is_missing"] is NA


def test_two_questions_differ_by_what_they_ask() -> None:
    content = say("What should the message say?")
    task = view(user("text Anna"), BOTH, WHICH, user("Anna Berg"), content, user("hi"),
                call("send", "m1", **SEND))  # fmt: skip
    labels = label(
        task, acted(user("text Anna"), BOTH, content, user("hi"), call("send", "m", **SEND))
    )
    assert labels["disambiguates"] is LACKING
    assert labels["asks_when_information_is_missing"] is PRESENT


TWO = user("convert 3 mile to km, and tell me the price of ABC stock")
MILES = call("convert", 4.83, amount=3, unit="mile")
STOCK = call("stock", {"price": 12.5}, query="ABC")
COMPOUND = view(TWO, MILES, STOCK, say("That is 4.83 km. The price is 12.5."))


@pytest.mark.parametrize(
    ("agent", "want"),
    [
        ([MILES, STOCK, say("Done.")], PRESENT),
        ([MILES, say("That is 4.83 km.")], LACKING),
        ([STOCK, say("The price is 12.5.")], LACKING),
        ([MILES, call("stock", "ConnectionError: Wifi is off", query="ABC"), say("No.")], NA),
        ([say("Done.")], NA),
    ],
)
def test_completes_all_parts(agent: list, want: Label) -> None:
    assert label(COMPOUND, acted(TWO, *agent))["completes_all_parts"] is want


def test_parts_are_what_does_not_feed_one_another() -> None:
    chain = view(
        user("text Anna hi"), call("search", [ANNA], name="Anna"),
        call("send", OFF, phone_number=ANNA["phone_number"], content="hi"),
        call("set_cellular", None, on=True),
        call("send", "m1", phone_number=ANNA["phone_number"], content="hi"),
    )  # fmt: skip
    assert [[c.name for c in p] for p in parts(chain.reference)] == [["search", "send"]]
    assert len(parts(COMPOUND.reference)) == 2


DELETE = user("delete Anna Berg")
ONE = call("search", [ANNA], name="Anna Berg")
TAKEN = view(DELETE, ONE, call("remove", None, person_id="aa11bb22"), say("Gone."))


@pytest.mark.parametrize(
    ("agent", "want"),
    [
        ([ONE, call("remove", None, person_id="aa11bb22")], PRESENT),
        ([ONE, call("remove", "ValueError: none", person_id="aa11bb23")], LACKING),  # garbled
        ([call("remove", "ValueError: none", person_id="12345678")], LACKING),  # made up
        ([ONE, say("Gone.")], NA),
    ],
)
def test_takes_exact_arguments(agent: list, want: Label) -> None:
    assert label(TAKEN, acted(DELETE, *agent))["takes_exact_arguments_from_results"] is want


RAW = user('text (212) 555-0101 "hi"')
FORMAT = view(RAW, call("send", "m1", **SEND), say("Sent."))
LATER = user("remind me to eat in 3 hours")
CLOCK = call("now", 1790000000)
SHIFT = call("shift", 1790010800, timestamp=1790000000, hours=3)
SHIFTED = view(
    LATER, CLOCK, SHIFT,
    call("add", None, at=1790010800), say("Set."),
)  # fmt: skip


@pytest.mark.parametrize(
    ("task", "agent", "want"),
    [
        (FORMAT, [RAW, call("send", "m1", **SEND)], PRESENT),
        (FORMAT, [RAW, call("send", "PhoneError: bad", phone_number="(212) 555-0101")], LACKING),
        (FORMAT, [RAW, say("No.")], NA),
        (SHIFTED, [LATER, CLOCK, call("add", None, at=1790000000), say("Set.")], LACKING),
        (SHIFTED, [LATER, CLOCK, SHIFT], PRESENT),
        (SHIFTED, [LATER, say("No.")], NA),
    ],
)  # fmt: skip
def test_converts_values(task: View, agent: list, want: Label) -> None:
    assert label(task, acted(*agent))["converts_values"] is want


IMPOSSIBLE = view(DELETE, say("Sorry, I can't do that."), forbidden=True)


@pytest.mark.parametrize(
    ("agent", "want"),
    [
        ([say("Sorry, I can't do that.")], PRESENT),
        ([], PRESENT),
        ([call("remove", "ValueError: none", person_id="12345678")], LACKING),
    ],
)
def test_declines_when_impossible(agent: list, want: Label) -> None:
    assert label(IMPOSSIBLE, acted(DELETE, *agent))["declines_when_impossible"] is want
    assert label(FORMAT, acted(RAW, *agent))["declines_when_impossible"] is NA


def test_a_check_that_was_made_before_an_invented_act_is_a_failure_to_decline() -> None:
    labels = label(
        REFUSED, acted(IF_ON, call("get_wifi", False), call("remove", None, person_id="12345678"))
    )
    assert labels["checks_preconditions"] is PRESENT
    assert labels["declines_when_impossible"] is LACKING


TELLS = view(
    ASKED, call("send", "m1", **SEND), say("The message is sent."),
    milestones=(ADDED, "The message is sent."),
)  # fmt: skip


@pytest.mark.parametrize(
    ("hits", "sent", "want"),
    [
        ((1.0, 1.0), True, PRESENT),
        ((1.0, 0.0), True, LACKING),
        ((1.0, 0.7), True, PRESENT),  # said something like it: unclear
        ((0.0, 0.0), True, NA),  # the act failed, so there was nothing to tell
        ((1.0, 0.0), False, NA),
        ((), True, NA),
    ],
)
def test_tells_the_user(hits: tuple[float, ...], sent: bool, want: Label) -> None:
    agent = [call("send", "m1", **SEND)] if sent else []
    assert label(TELLS, acted(ASKED, *agent, say("Done."), hits=hits))["tells_the_user"] is want


def test_an_unasked_question_is_not_an_untold_result() -> None:
    task = view(
        TEXT_HER, say("What should it say?"), user("hi"), call("send", "m1", **SEND), say("Sent."),
        milestones=("What should it say?", ADDED, "Sent."),
    )  # fmt: skip
    labels = label(
        task, acted(TEXT_HER, call("send", "m1", **SEND), say("x"), hits=(0.0, 1.0, 0.0))
    )
    assert labels["tells_the_user"] is NA


def test_controls() -> None:
    silent = label(TELLS, acted(ASKED, say("Hello."), stop=StopReason.TURN_LIMIT))
    assert silent["uses_tools_at_all"] is LACKING
    assert silent["stays_within_turn_limit"] is LACKING
    assert silent["closes_conversation"] is PRESENT
    assert silent["well_formed_tool_calls"] is NA
    broken = label(TELLS, acted(ASKED, say("<tool"), malformed="no JSON"))
    assert broken["well_formed_tool_calls"] is LACKING
    assert label(IMPOSSIBLE, acted(DELETE, say("No.")))["uses_tools_at_all"] is NA


def test_a_control_says_nothing_where_a_capability_explains_the_failure() -> None:
    labels = label(REPAIR, acted(ASKED, call("send", OFF, **SEND), stop=StopReason.TURN_LIMIT))
    assert labels["recovers_from_errors"] is LACKING
    assert labels["stays_within_turn_limit"] is PRESENT
    assert labels["closes_conversation"] is PRESENT


# -- in the real world ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world_tasks() -> list[Task]:
    """One task of every scenario shape."""
    return [build(s, Words("train"), 5, f"x/{s.name}", "train")[0] for s in SHAPES.values()]


def test_flawed_programs_are_labelled_with_their_flaw(world_tasks: list[Task]) -> None:
    """Of the failures that one missing capability causes, nearly all are labelled with exactly it;
    reference solutions are labelled with nothing."""
    suite = EmbeddedSuite()
    right: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for task in world_tasks:
        known = facts_of(suite, task)
        whole = act_out(task, frozenset())
        assert whole.score is not None and whole.score.success
        assert LACKING not in labelling.label(known, whole).values(), task.id
        for lacking in CAPABILITIES:
            trajectory = act_out(task, frozenset({lacking}))
            if trajectory.score is None or trajectory.score.success:
                continue
            found = [name for name, v in labelling.label(known, trajectory).items() if v is LACKING]
            failures[lacking] += 1
            right[lacking] += found == [lacking]
    assert set(failures) >= set(CAPABILITIES) - {"takes_exact_arguments_from_results"}
    for lacking, n in failures.items():
        assert right[lacking] >= 0.85 * n, (lacking, right[lacking], n)


class Guarded(dict):
    """Task data that must not be asked for its hidden notes."""

    def __getitem__(self, key: str) -> Any:
        assert key not in HIDDEN, f"the labelling program read {key!r}"
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        assert key not in HIDDEN, f"the labelling program read {key!r}"
        return super().get(key, default)


def test_hidden_notes_are_not_read_and_not_needed(world_tasks: list[Task]) -> None:
    suite = EmbeddedSuite()
    for task in world_tasks[::5]:
        trajectory = act_out(task, frozenset({"recovers_from_errors", "converts_values"}))
        want = labelling.label(facts_of(suite, task), trajectory)
        bare = {k: v for k, v in task.data.items() if k not in HIDDEN}
        for data in (Guarded(task.data), bare):
            blind = Task(task.id, task.env, task.split, task.seed, data)
            assert labelling.label(facts_of(suite, blind), trajectory) == want


# -- nonsense ---------------------------------------------------------------------------------

JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
NAMES = st.sampled_from(["send", "search", "remove", "get_wifi", "", "no such tool"])
ARGUMENTS = JSONS | JSONS.map(lambda v: json.dumps(v)) | st.just("{")
FUNCTION = st.fixed_dictionaries({"name": NAMES | JSONS, "arguments": ARGUMENTS})
TOOL_CALL = JSONS | st.fixed_dictionaries({"id": JSONS, "function": JSONS | FUNCTION})
REPLY = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": JSONS | st.sampled_from(["?", "Which one?", ""]),
        "tool_calls": JSONS | st.lists(TOOL_CALL, max_size=3),
    },
)
OTHER = st.fixed_dictionaries(
    {"role": st.sampled_from(["tool", "user", "system"])},
    optional={"content": JSONS, "tool_call_id": JSONS},
)
VIEWS = (
    REPAIR,
    HOLDS,
    REFUSED,
    MISSING,
    AMBIGUOUS,
    CHOICE,
    COMPOUND,
    TAKEN,
    SHIFTED,
    IMPOSSIBLE,
    TELLS,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(REPLY | OTHER, max_size=8),
    st.sampled_from(VIEWS),
    st.lists(st.floats(0, 1), max_size=3),
    st.sampled_from(list(StopReason)),
)
def test_labels_survive_nonsense(
    messages: list[Message], task: View, hits: list[float], stop: StopReason
) -> None:
    labels = label(task, acted(messages, hits=tuple(hits), stop=stop))
    assert list(labels) == [c.name for c in VOCABULARY]
    assert all(isinstance(v, Label) for v in labels.values())
    assert isinstance(labels, Mapping)


@settings(max_examples=30, deadline=None)
@given(st.lists(REPLY, max_size=4), st.integers(0, 128))
def test_labels_survive_nonsense_played_in_the_world(replies: list[Message], which: int) -> None:
    suite = EmbeddedSuite()
    task = suite.tasks("train")[which % 64]
    env = suite.make()
    step = env.reset(task)
    turns: list[Turn] = []
    for reply in replies:
        if step.done:
            break
        turns.append(Turn(step.messages, reply))
        step = env.step(reply)
    score = step.score or env.score()
    trajectory = Trajectory(
        task.id, 0, "b", (), tuple(turns), step.messages, StopReason.DONE, score
    )
    assert len(labelling.label(facts_of(suite, task), trajectory)) == len(VOCABULARY)


def test_a_part_that_calls_a_tool_more_often_than_the_agent_did() -> None:
    """Two calls of one part by the same name, of which the agent made one."""
    asked = user("Find it and go there, and turn left.")
    found = call("find", {"code": "x91"}, name="it")
    gone, again = call("go", "ok", code="x91"), call("go", "there", code="x91")
    task = view(asked, found, gone, again, call("turn", "ok", way="left"), say("Done."))
    labels = label(task, acted(asked, found, gone, say("Done.")))
    assert labels["completes_all_parts"] is LACKING


def test_an_object_with_nothing_but_an_error_is_an_error() -> None:
    refused, told = {"error": "not logged in"}, {"error": "none", "rows": []}
    conversation = read(chat(call("post", refused), call("look", told)))
    assert [c.error is not None for c in conversation.calls] == [True, False]
    assert conversation.calls[0].result is None and len(conversation.good) == 1
