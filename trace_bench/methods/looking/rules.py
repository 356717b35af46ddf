"""The labelling program: NA, PRESENT or LACKING for every (trajectory, capability) pair, by one
rule per capability.

It compares a trajectory with the task's reference, which it has replayed for its results, and with
the milestones of the score, where there are any. It never looks at a task's data. Each rule asks
first whether the situation came up and was reached (else NA), then for the positive sign of a lack;
all that is unclear is PRESENT. Controls say LACKING only where no capability explains more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from trace_bench.core.protocols import Suite
from trace_bench.core.types import Score, StopReason, Task, Trajectory
from trace_bench.methods.looking import evidence
from trace_bench.methods.looking.capabilities import VOCABULARY, Label
from trace_bench.methods.looking.evidence import Case, Heard, Text, records, same

NA, PRESENT, LACKING = Label.NA, Label.PRESENT, Label.LACKING
HIT = 1.0 - 1e-6
TOLD = 0.5  # a closing message less similar than this to the wanted one does not tell the result


def label(reference: Heard, trajectory: Trajectory) -> dict[str, Label]:
    """Labels of all capabilities of the vocabulary, in its order, by the task's reference. Never
    raises for what an agent did; expects a scored trajectory."""
    score, agent = trajectory.score, evidence.read(trajectory.messages)
    assert score is not None
    case = Case(agent, score.milestones, score.minefields, reference)
    labels = {name: rule(case) for name, (rule, _) in RULES.items()}
    explained = LACKING in labels.values()
    for name, verdict in _controls(trajectory, agent, bool(reference.calls)).items():
        labels[name] = PRESENT if verdict is LACKING and explained else verdict
    return {c.name: labels[c.name] for c in VOCABULARY}


def _lacking(lack: bool) -> Label:
    return LACKING if lack else PRESENT


def _controls(trajectory: Trajectory, agent: Heard, acts: bool) -> dict[str, Label]:
    """`acts`: whether the task wants more than words."""
    malformed = any(turn.malformed for turn in trajectory.turns)
    unreadable = malformed or not all(c.readable for c in agent.calls)
    late = trajectory.stop in (StopReason.TURN_LIMIT, StopReason.CONTEXT_LIMIT)
    return {
        "uses_tools_at_all": _lacking(not agent.calls) if acts else NA,
        "well_formed_tool_calls": _lacking(unreadable) if agent.calls or malformed else NA,
        "closes_conversation": _lacking(not agent.ends_with_text),
        "stays_within_turn_limit": _lacking(late),
    }


# -- recovers_from_errors ---------------------------------------------------------------------


def _recovers(case: Case) -> Label:
    """A call that the reference makes with success failed here: was it made to work in the end?
    Calls with other arguments than the reference's failed for another reason and do not count."""
    verdict = NA
    for call in case.agent.calls:
        if call.error is None or not evidence.right_call(call, case.reference.good):
            continue
        if not case.agent.mended(call):
            return LACKING
        verdict = PRESENT
    return verdict


# -- checks_preconditions ---------------------------------------------------------------------


def _checks(case: Case) -> Label:
    """The reference asks a yes-or-no tool before it goes on, or stops because of the answer."""
    reference = case.reference
    check = next((c for c in reference.good if isinstance(c.result, bool)), None)
    if check is None:
        return NA
    after = {c.name for c in reference.calls if c.at > check.at and c.name != check.name}
    earlier = {c.name for c in reference.calls if c.at < check.at}
    looked = [c.at for c in case.agent.calls if c.name == check.name]
    if after:
        acted = [c.at for c in case.agent.calls if c.name in after - earlier]
        if not acted:
            return NA
        return PRESENT if looked and min(looked) < min(acted) else LACKING
    if not case.minefields:
        return NA  # the answer itself was asked for
    expected = earlier | {check.name}
    if any(c.name not in expected for c in case.agent.calls):
        # The reference stops here, the agent acted: against the answer, unless it looked and then
        # acted on something made up, which is a failure to decline.
        return PRESENT if looked and evidence.invents(case, expected) else LACKING
    return PRESENT if looked else NA


# -- asks_when_information_is_missing, disambiguates ------------------------------------------


def _ask(reference: Heard, several: bool) -> Text | None:
    """The reference's first question for something missing, or (`several`) its first one after a
    search gave several records. One question settles a search; the next is about something else."""
    settled: set[int] = set()
    for question in reference.questions:
        done = reference.before(question.at).good
        open_search = bool(done) and len(records(done[-1])) > 1 and done[-1].at not in settled
        if open_search:
            settled.add(done[-1].at)
        if open_search is several:
            return question
    return None


def _means(mine: Text, reference: Heard) -> Text:
    """Which of the reference's questions the agent's question is most like, by shared words."""
    words = set(mine.text.lower().split())

    def alike(theirs: Text) -> float:
        wanted = set(theirs.text.lower().split())
        return len(words & wanted) / max(1, len(words | wanted))

    return max(reference.questions, key=alike)


def _asked(case: Case, question: Text) -> Label:
    """Did the agent ask before it went on? NA when it never got as far as the question."""
    reference, agent = case.reference, case.agent
    earlier = {c.name for c in reference.calls if c.at < question.at}
    later = {c.name for c in reference.calls if c.at > question.at} - earlier
    asked = next((t.at for t in agent.questions if _means(t, reference) is question), None)
    acted = [c.at for c in agent.calls if c.name in later]
    if asked is not None and (not acted or asked < min(acted)):
        return PRESENT
    if acted:
        return LACKING
    reached = earlier <= {c.name for c in agent.good} and not agent.stuck()
    return LACKING if reached and agent.said else NA


def _asks(case: Case) -> Label:
    question = _ask(case.reference, several=False)
    return NA if question is None else _asked(case, question)


def _disambiguates(case: Case) -> Label:
    """Several records matched: the reference asks which one, or picks one by what it knows."""
    agent, reference = case.agent, case.reference
    if not any(len(records(c)) > 1 for c in agent.good):
        return NA
    question = _ask(reference, several=True)
    if question is not None:
        return _asked(case, question)
    for search in (c for c in reference.good if len(records(c)) > 1):
        if (chosen := evidence.chosen_record(search, reference.calls)) is None:
            continue
        tool, key, value = chosen
        others = [a for row in records(search) for a in evidence.atoms(row) if not same(a, value)]
        used = [c.arguments.get(key) for c in agent.calls if c.name == tool and key in c.arguments]
        if any(same(u, value) for u in used):
            return PRESENT
        if any(same(u, other) for u in used for other in others):
            return LACKING
    return NA


# -- completes_all_parts ----------------------------------------------------------------------


def _completes(case: Case) -> Label:
    """Parts that were not even begun, though nothing else was in the way. In a world without words
    the agent does not end by itself, and the milestones say what it did."""
    if not case.reference.said:
        hits = [m.hit for m in case.milestones]
        return _lacking(not all(hits)) if len(hits) > 1 and any(hits) else NA
    wanted = evidence.parts(case.reference)
    if len(wanted) < 2 or case.agent.stuck():
        return NA
    left = Counter(c.name for c in case.agent.calls)
    begun: list[bool] = []
    for part in wanted:
        begun.append(any(left[c.name] > 0 for c in part))
        left.subtract(c.name for c in part)
    if not any(begun):
        return NA
    last = max(i for i, b in enumerate(begun) if b)
    missing = any(
        # A yes-or-no look-up that was skipped on the way to a later part is a missing check.
        not b and not (i < last and all(isinstance(c.result, bool) for c in wanted[i]))
        for i, b in enumerate(begun)
    )
    return LACKING if missing and case.agent.said else PRESENT


# -- takes_exact_arguments_from_results -------------------------------------------------------


def _exact(case: Case) -> Label:
    """Where the reference takes a value over from a result: is the agent's made up or garbled?"""
    reference, agent = case.reference, case.agent
    seen: list[bool] = []
    for call in reference.good:
        past = reference.before(call.at)
        for key, value in call.arguments.items():
            if (
                evidence.precise(value)
                and not evidence.in_texts(value, past.heard)
                and evidence.in_results(value, past.good)
            ):
                mine = [c for c in agent.calls if c.name == call.name and key in c.arguments]
                seen += [evidence.made_up(c, key, agent) for c in mine]
    return _lacking(any(seen)) if seen else NA


# -- converts_values --------------------------------------------------------------------------


def _converts(case: Case) -> Label:
    reference, agent = case.reference, case.agent
    if len(agent.questions) < len(reference.questions):
        return NA  # what was never asked for could not be converted
    verdict = NA
    for call in reference.good:
        mine = [c for c in agent.calls if c.name == call.name]
        for key, value in call.arguments.items():
            if value == "" or not mine or not evidence.is_converted(value, call, reference):
                continue
            if not any(same(c.arguments.get(key), value) for c in mine):
                return LACKING
            verdict = PRESENT
    step = _skipped_step(case)
    return verdict if step is NA else step


def _skipped_step(case: Case) -> Label:
    """A call that turns one result into another value, which the agent leaves out although it has
    what goes in and goes on with what should have come out."""
    reference, agent = case.reference, case.agent
    if agent.stuck():
        return NA
    verdict = NA
    for call in reference.good:
        sources = [
            c for c in reference.good if c.at < call.at and evidence.feeds(c, call, reference)
        ]
        numbers = [v for v in evidence.atoms(call.result) if evidence.as_number(v) is not None]
        if not sources or not numbers or records(call):
            continue
        if any(c.name == call.name for c in agent.calls):
            verdict = PRESENT if verdict is NA else verdict
        elif {c.name for c in sources} <= {c.name for c in agent.good} and agent.said:
            return LACKING
    return verdict


# -- declines_when_impossible, tells_the_user -------------------------------------------------


def _declines(case: Case) -> Label:
    """The reference ends with words instead of acts, and not because of a check."""
    reference = case.reference
    expected = {c.name for c in reference.calls}
    checked = any(isinstance(c.result, bool) for c in reference.good)
    refuses = bool(reference.said) and not reference.calls and not reference.questions
    if case.minefields and checked:
        return LACKING if _checks(case) is PRESENT and evidence.invents(case, expected) else NA
    if not refuses and not case.minefields:
        return NA
    return LACKING if any(c.name not in expected for c in case.agent.calls) else PRESENT


def _tells(case: Case) -> Label:
    """Everything else was done: was the user told? Questions are not answers."""
    told = [m.similarity for m in case.milestones if m.tells is not None and "?" not in m.tells]
    rest = [m.similarity for m in case.milestones if m.tells is None or "?" in m.tells]
    if not told or min(rest, default=1.0) < HIT or case.agent.stuck():
        return NA
    return _lacking(min(told) < TOLD)


def _tells_all(case: Case) -> Label:
    wanted = {c.name for c in case.reference.calls}
    return _tells(case) if wanted <= {c.name for c in case.agent.calls} else NA


Rule = Callable[[Case], Label]
# Each with what a reference has where the rule can see something.
RULES: Mapping[str, tuple[Rule, str]] = {
    "recovers_from_errors": (_recovers, "a call that fails at first, or out of order"),
    "checks_preconditions": (_checks, "a yes/no tool before an act or a refusal"),
    "asks_when_information_is_missing": (_asks, "a question to the user"),
    "disambiguates": (_disambiguates, "several records, then a question or a value of just one"),
    "completes_all_parts": (_completes, "two parts that take nothing from each other"),
    "takes_exact_arguments_from_results": (_exact, "a value with digits out of a result"),
    "converts_values": (_converts, "a value in a new form, or a result made into a number"),
    "declines_when_impossible": (_declines, "words without a call, or a score with minefields"),
    "tells_the_user": (_tells_all, "a milestone with `tells`"),
}


def seen_in(suite: Suite, task: Task) -> set[str]:
    """The capabilities that could be seen in an agent which does what the reference does, or
    leaves out how it begins."""
    replies, seen = suite.reference(task), set[str]()
    reference, _ = evidence.replayed(suite, task, replies)
    for start in range(len(replies)):
        agent, last = evidence.replayed(suite, task, replies[start:])
        score = last.score or Score(0.0, False)
        case = Case(agent, score.milestones, score.minefields, reference)
        seen |= {name for name, (rule, _) in RULES.items() if rule(case) is not NA}
    return seen
