"""The labelling program: every capability on hand-made conversations, then on flawed programs in
the real world, then on nonsense."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from trace_lab import SHAPES, act_out

from trace_bench.core.types import Message, Milestone, Score, StopReason, Task, Trajectory, Turn
from trace_bench.envs.toolsandbox.scenarios import CAPABILITIES, EmbeddedSuite
from trace_bench.envs.toolsandbox.scenarios.build import build
from trace_bench.envs.toolsandbox.scenarios.pools import Words
from trace_bench.methods.looking import rules as labelling
from trace_bench.methods.looking.capabilities import VOCABULARY, Label
from trace_bench.methods.looking.evidence import Heard, heard_of, parts, read

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
    """A task as the program knows it: its reference, and what its score is made from; and how the
    user begins."""

    reference: Heard
    first: list[Message]
    milestones: tuple[str | None, ...] = ()  # what each wants the user to be told
    forbidden: bool = False


def view(
    *parts: list[Message], milestones: tuple[str | None, ...] = (), forbidden: bool = False
) -> View:
    return View(read(chat(*parts)), parts[0], milestones, forbidden)


def label(task: View, trajectory: Trajectory) -> dict[str, Label]:
    """Labels of a trajectory whose score has the task's milestones, met as it says. Another number
    of milestones than the task has: the score has none."""
    score = trajectory.score
    assert score is not None
    hits = score.milestones if len(score.milestones) == len(task.milestones) else ()
    pairs = zip(hits, task.milestones, strict=False)
    milestones = tuple(replace(m, tells=tells) for m, tells in pairs)
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


IF_ON = user('if wifi is on, text +12125550101 "hi"')
HOLDS = view(IF_ON, call("get_wifi", True), call("send", "m1", **SEND), say("Sent."))
REFUSED = view(IF_ON, call("get_wifi", False), say("Wifi is off."), forbidden=True)


STATUS = view(user("is wifi on"), call("get_wifi", True), say("Wifi is on."))
TEXT_HER = user("text +12125550101")
MISSING = view(
    TEXT_HER, say("What should the message say?"), user("hi"), call("send", "m1", **SEND),
    say("Sent."),
)  # fmt: skip


REMOVE = user("delete Anna from my contacts")
BOTH = call("search", [ANNA, ANNE], name="Anna")
WHICH = say("Which one do you mean: Anna Berg or Anna Holm?")
AMBIGUOUS = view(
    REMOVE, BOTH, WHICH, user("Anna Holm"), call("remove", None, person_id="cc33dd44"), say("Gone.")
)
CHOICE = view(user("delete Anna Holm"), BOTH, call("remove", None, person_id="cc33dd44"))


TWO = user("convert 3 mile to km, and tell me the price of ABC stock")
MILES = call("convert", 4.83, amount=3, unit="mile")
STOCK = call("stock", {"price": 12.5}, query="ABC")
COMPOUND = view(TWO, MILES, STOCK, say("That is 4.83 km. The price is 12.5."))
FIND, GO = call("find", {"code": "x91"}, name="it"), call("go", "ok", code="x91")
TWICE = view(
    user("Find it and go there, and turn left."), FIND, GO, call("go", "there", code="x91"),
    call("turn", "ok", way="left"), say("Done."),
)  # fmt: skip


CHAIN = view(
    user("text Anna hi"), call("search", [ANNA], name="Anna"),
    call("send", OFF, phone_number=ANNA["phone_number"], content="hi"),
    call("set_cellular", None, on=True),
    call("send", "m1", phone_number=ANNA["phone_number"], content="hi"),
)  # fmt: skip
DELETE = user("delete Anna Berg")
ONE = call("search", [ANNA], name="Anna Berg")
TAKEN = view(DELETE, ONE, call("remove", None, person_id="aa11bb22"), say("Gone."))


RAW = user('text (212) 555-0101 "hi"')
FORMAT = view(RAW, call("send", "m1", **SEND), say("Sent."))
LATER = user("remind me to eat in 3 hours")
CLOCK = call("now", 1790000000)
SHIFT = call("shift", 1790010800, timestamp=1790000000, hours=3)
SHIFTED = view(LATER, CLOCK, SHIFT, call("add", None, at=1790010800), say("Set."))


IMPOSSIBLE = view(DELETE, say("Sorry, I can't do that."), forbidden=True)


TELLS = view(
    ASKED, call("send", "m1", **SEND), say("The message is sent."),
    milestones=(ADDED, "The message is sent."),
)  # fmt: skip


WIFI_OFF, INVENTED = call("get_wifi", False), call("remove", "ValueError: no", person_id="12345678")
SENT = call("send", "m1", **SEND)
GONE = call("remove", None, person_id="aa11bb22")
CONTENT = say("What should the message say?")
AGAIN = call("set_cellular", None, on=True)
STUCK = view(ASKED, FAILED, say("Sorry, cellular service is off."))
QUESTIONS = view(user("text Anna"), BOTH, WHICH, user("Anna Berg"), CONTENT, user("hi"), SENT)
NO_STOCK = call("stock", "ConnectionError: Wifi is off", query="ABC")

RULES: dict[str, list[tuple[View, list[list[Message]], Label]]] = {
    "recovers_from_errors": [
        (REPAIR, [FAILED, AGAIN, SENT], PRESENT),
        (REPAIR, [FAILED, say("Sorry, cellular service is off.")], LACKING),
        (REPAIR, [call("send", OFF, phone_number="5", content="hi"), say("Sorry.")], NA),
        (REPAIR, [say("Sorry.")], NA),
        (STUCK, [FAILED, say("No.")], NA),  # the reference cannot mend it either
    ],
    "checks_preconditions": [
        (HOLDS, [call("get_wifi", True), SENT], PRESENT),
        (HOLDS, [SENT], LACKING),
        (HOLDS, [SENT, call("get_wifi", True)], LACKING),  # too late
        (HOLDS, [say("Done.")], NA),
        (REFUSED, [WIFI_OFF, say("Wifi is off.")], PRESENT),
        (REFUSED, [SENT], LACKING),
        (REFUSED, [WIFI_OFF, SENT], LACKING),
        (REFUSED, [say("No.")], NA),
        (REFUSED, [WIFI_OFF, INVENTED], PRESENT),
        (STATUS, [call("set_wifi", None, on=True)], NA),  # the answer itself was asked for
    ],
    "asks_when_information_is_missing": [
        (MISSING, [say("What should it say?"), user("hi"), SENT], PRESENT),
        (MISSING, [call("send", "m1", phone_number="+12125550101", content="hello")], LACKING),
        (MISSING, [SENT, say("What should it say?")], LACKING),  # too late
        (MISSING, [say("Sorry.")], LACKING),
        (MISSING, [call("look", "ValueError: no"), say("Sorry.")], NA),  # never got that far
        (MISSING, [], NA),
        (AMBIGUOUS, [BOTH, say("Gone.")], NA),
        (QUESTIONS, [BOTH, CONTENT, user("hi"), SENT], PRESENT),
    ],
    "disambiguates": [
        (AMBIGUOUS, [BOTH, WHICH, user("Anna Holm")], PRESENT),
        (AMBIGUOUS, [BOTH, GONE], LACKING),
        (AMBIGUOUS, [BOTH, say("Gone.")], LACKING),
        (AMBIGUOUS, [say("Gone.")], NA),
        (CHOICE, [BOTH, call("remove", None, person_id="cc33dd44")], PRESENT),
        (CHOICE, [BOTH, GONE], LACKING),
        (CHOICE, [BOTH, call("remove", None, person_id="ffff0000")], NA),  # garbled, not chosen
        (MISSING, [SENT], NA),
        (QUESTIONS, [BOTH, CONTENT, user("hi"), SENT], LACKING),
    ],
    "completes_all_parts": [
        (COMPOUND, [MILES, STOCK, say("Done.")], PRESENT),
        (COMPOUND, [MILES, say("That is 4.83 km.")], LACKING),
        (COMPOUND, [STOCK, say("The price is 12.5.")], LACKING),
        (COMPOUND, [MILES, NO_STOCK, say("No.")], NA),
        (COMPOUND, [say("Done.")], NA),
        (CHAIN, [say("Done.")], NA),  # its calls are one part
        (TWICE, [FIND, GO, say("Done.")], LACKING),  # one of two calls by the same name
    ],
    "takes_exact_arguments_from_results": [
        (TAKEN, [ONE, GONE], PRESENT),
        (TAKEN, [ONE, call("remove", "ValueError: none", person_id="aa11bb23")], LACKING),
        (TAKEN, [INVENTED], LACKING),
        (TAKEN, [ONE, say("Gone.")], NA),
    ],
    "converts_values": [
        (FORMAT, [SENT], PRESENT),
        (FORMAT, [call("send", "PhoneError: bad", phone_number="(212) 555-0101")], LACKING),
        (FORMAT, [say("No.")], NA),
        (SHIFTED, [CLOCK, call("add", None, at=1790000000), say("Set.")], LACKING),
        (SHIFTED, [CLOCK, SHIFT], PRESENT),
        (SHIFTED, [say("No.")], NA),
    ],
    "declines_when_impossible": [
        (IMPOSSIBLE, [say("Sorry, I can't do that.")], PRESENT),
        (IMPOSSIBLE, [], PRESENT),
        (IMPOSSIBLE, [INVENTED], LACKING),
        (FORMAT, [INVENTED], NA),
        (REFUSED, [WIFI_OFF, SENT], NA),
        (REFUSED, [WIFI_OFF, INVENTED], LACKING),  # it checked, and then invented an act
    ],
}


@pytest.mark.parametrize(
    ("capability", "task", "agent", "want"),
    [(name, *case) for name, cases in RULES.items() for case in cases],
)
def test_each_rule(capability: str, task: View, agent: list, want: Label) -> None:
    assert label(task, acted(task.first, *agent))[capability] is want


def test_parts_are_what_does_not_feed_one_another() -> None:
    assert [[c.name for c in p] for p in parts(CHAIN.reference)] == [["search", "send"]]
    assert len(parts(COMPOUND.reference)) == 2


TOLD = [
    ((1.0, 1.0), True, PRESENT),
    ((1.0, 0.0), True, LACKING),
    ((1.0, 0.7), True, PRESENT),  # said something like it: unclear
    ((0.0, 0.0), True, NA),  # the act failed, so there was nothing to tell
    ((1.0, 0.0), False, NA),
    ((), True, NA),
]


@pytest.mark.parametrize(("hits", "sent", "want"), TOLD)
def test_tells_the_user(hits: tuple[float, ...], sent: bool, want: Label) -> None:
    agent = [SENT] if sent else []
    assert label(TELLS, acted(ASKED, *agent, say("Done."), hits=hits))["tells_the_user"] is want


def test_an_unasked_question_is_not_an_untold_result() -> None:
    task = replace(MISSING, milestones=("What should the message say?", ADDED, "Sent."))
    labels = label(task, acted(TEXT_HER, SENT, say("x"), hits=(0.0, 1.0, 0.0)))
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
    for task in world_tasks[::2]:
        facts = heard_of(suite, task)
        whole = act_out(task, frozenset())
        assert whole.score is not None and whole.score.success
        assert LACKING not in labelling.label(facts, whole).values(), task.id
        for lacking in CAPABILITIES:
            trajectory = act_out(task, frozenset({lacking}))
            if trajectory.score is None or trajectory.score.success:
                continue
            labels = labelling.label(facts, trajectory)
            failures[lacking] += 1
            right[lacking] += [n for n, v in labels.items() if v is LACKING] == [lacking]
    assert set(failures) >= set(CAPABILITIES) - {"takes_exact_arguments_from_results"}
    for lacking, n in failures.items():
        assert right[lacking] >= 0.85 * n, (lacking, right[lacking], n)


def test_hidden_notes_are_not_read(world_tasks: list[Task]) -> None:
    suite = EmbeddedSuite()
    for task in world_tasks[::5]:
        trajectory = act_out(task, frozenset({"recovers_from_errors", "converts_values"}))
        blind = replace(task, data={k: v for k, v in task.data.items() if k not in HIDDEN})
        want = labelling.label(heard_of(suite, task), trajectory)
        assert labelling.label(heard_of(suite, blind), trajectory) == want


# -- nonsense ---------------------------------------------------------------------------------

VIEWS = list({id(task): task for cases in RULES.values() for task, *_ in cases}.values())
ODD: list[Any] = [None, True, 10**400, float("nan"), "{", "", [], [[1]], {"name": 7}, {"x": {}}]
CALLS = [*ODD, *({"id": odd, "function": {"name": "send", "arguments": odd}} for odd in ODD)]
NONSENSE: list[list[Message]] = [
    [{"role": "assistant"}, {"role": "tool"}, {"role": "user"}],
    [{"role": "assistant", "content": odd, "tool_calls": odd} for odd in ODD],
    [{"role": "assistant", "content": "Which one?", "tool_calls": CALLS}],
    [m for odd in ODD for m in (
        {"role": "assistant", "tool_calls": [{"id": odd, "function": odd}]},
        {"role": "tool", "content": odd, "tool_call_id": odd},
    )],
]  # fmt: skip


@pytest.mark.parametrize("messages", NONSENSE)
def test_labels_survive_nonsense(messages: list[Message]) -> None:
    for task in VIEWS:
        for stop in StopReason:
            labels = label(task, acted(messages, hits=(0.0, 0.5), stop=stop))
            assert list(labels) == [c.name for c in VOCABULARY]
            assert all(isinstance(v, Label) for v in labels.values())


def test_an_object_with_nothing_but_an_error_is_an_error() -> None:
    refused, told = {"error": "not logged in"}, {"error": "none", "rows": []}
    conversation = read(chat(call("post", refused), call("look", told)))
    assert [c.error is not None for c in conversation.calls] == [True, False]
    assert conversation.calls[0].result is None and len(conversation.good) == 1
