"""A language model as the analyst (method, step 1): one discovery, then N isolated labelling runs.

Every run sees the trajectories in an order of its own and knows nothing of the others. An answer
that breaks its schema goes back with what is wrong; a run that still cannot be used is dropped, and
logged. K of N scales with the runs that are left, and below a minimum there is no selection.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from trace_bench.core.chat import opening_of
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab
from trace_bench.core.store import stable_seed
from trace_bench.core.types import JSON, Message
from trace_bench.llm.client import LLMError
from trace_bench.llm.roles import Unusable, read_json
from trace_bench.methods.looking.capabilities import Analysed, AnalysisSettings, Capability, Label
from trace_bench.methods.looking.evidence import compact
from trace_bench.trainers.job import in_groups

ROLE = "analyst"
FEWEST, MOST = 4, 10  # capabilities proposed (published)
LEAST_RUNS = 5  # labelling runs that a selection is made from (ours)
BATCH = 8  # trajectories labelled in one answer
LEAST_TEXT = 500  # characters of a trajectory below which it shows too little

DISCOVER = """\
You study how an agent works with tools. Below are episodes: what the user wanted, what the agent
said and called, what came back, and whether the task was solved.

Find {fewest} to {most} capabilities whose lack explains failures. A capability is something that an
agent does in an episode and that some of the tasks need: general, not tied to one tool or one
topic, such as "puts right the cause of a failed call and repeats it". Prefer those that the solved
episodes show and the failed ones lack.

Answer with one JSON object and nothing else:
{{"capabilities": [{{"name": "short_snake_case", "description": "one sentence: what an agent that
has it does", "episodes": ["T001", "T007"]}}]}}
`episodes` names 2 to 4 episodes in which it matters."""

LABEL = """\
You label episodes of an agent that works with tools. For each episode and each capability say
  NA       the episode never came to a situation that needs it
  PRESENT  it was needed and shown, or you are unsure
  LACKING  it was needed and not shown, or shown wrongly
Judge each pair by itself; a failed episode need not lack anything in the list.

Capabilities:
{capabilities}

Answer with one JSON object and nothing else, with every episode and every capability:
{{"labels": {{"T001": {{"capability_name": "NA"}}}}}}"""


def _discovered(episodes: Seen) -> JSON:
    named = {"enum": list(episodes)}
    one = _object(
        name={"type": "string", "pattern": "^[a-z][a-z0-9_]{2,50}$"},
        description={"type": "string", "minLength": 10, "maxLength": 500},
        episodes={"type": "array", "minItems": 1, "maxItems": len(episodes), "items": named},
    )
    return _object(
        capabilities={"type": "array", "minItems": FEWEST, "maxItems": MOST, "items": one}
    )


Seen = Mapping[str, Analysed]
"""Episodes under the names by which the analyst is shown them."""

LabellingRun = tuple[Mapping[str, Label], ...]
"""Labels of every episode, in order."""


def discover(lab: Lab, seen: Seen) -> list[Capability]:
    """The candidates. Raises UserError when the analyst gives none that can be used."""
    episodes = _fitting(seen, _prompt_limit(lab))
    rules = DISCOVER.format(fewest=FEWEST, most=MOST)
    schema = _discovered(episodes)

    def read(text: str) -> list[Capability]:
        proposals = read_json(text, schema)["capabilities"]
        names = [c["name"] for c in proposals]
        if len(set(names)) < len(names):
            raise Unusable(f"a name stands twice in {names}.")
        return [Capability(c["name"], " ".join(c["description"].split())) for c in proposals]

    try:
        question = _messages(rules, episodes, _prompt_limit(lab))
        return lab.ask(ROLE, "discover", question, read, schema)
    except LLMError as error:
        lab.retract(ROLE, "discover")
        raise UserError(
            f"the analyst proposed no capabilities that can be used: {error}. The same command "
            "asks again; or change `llm.analyst`."
        ) from error


def label(
    lab: Lab, seen: Seen, candidates: Sequence[Capability], settings: AnalysisSettings
) -> list[LabellingRun]:
    """N labelling runs side by side, as far as they can be used. UserError when too few can."""
    with ThreadPoolExecutor(settings.runs) as threads:
        outcomes = list(threads.map(lambda n: _run(lab, seen, candidates, n), range(settings.runs)))
    good: list[LabellingRun] = []
    for n, outcome in enumerate(outcomes):
        if isinstance(outcome, LLMError):
            lab.log(why := f"labelling run {n} is dropped: {outcome}")
        else:
            good.append(outcome)
    least = min(LEAST_RUNS, settings.runs)
    if len(good) < least:
        lab.retract(ROLE, "label")
        raise UserError(
            f"only {len(good)} of {settings.runs} labelling runs can be used, and "
            f"{least} are needed; the last trouble: {why}. The same command asks again; or "
            "change `llm.analyst`."
        )
    return good


def majority(runs: Sequence[LabellingRun], episode: int) -> dict[str, Label]:
    """The label of most runs for one episode; PRESENT where none has the most."""
    out = {}
    for name in runs[0][episode]:
        votes = [run[episode][name] for run in runs]
        best = max(Label, key=votes.count)
        tied = sum(votes.count(other) == votes.count(best) for other in Label) > 1
        out[name] = Label.PRESENT if tied else best
    return out


def _run(
    lab: Lab, seen: Seen, candidates: Sequence[Capability], run: int
) -> LabellingRun | LLMError:
    order = list(seen)
    random.Random(stable_seed(lab.seed, "trace", "labelling", run)).shuffle(order)
    labels: dict[str, Mapping[str, Label]] = {}
    rules = LABEL.format(capabilities="\n".join(f"  {c.name}: {c.description}" for c in candidates))
    one = _object(**{c.name: {"enum": [v.value for v in Label]} for c in candidates})
    try:
        for n, batch in enumerate(in_groups(order, BATCH)):
            schema = _object(labels=_object(**dict.fromkeys(batch, one)))
            episodes = {name: seen[name] for name in batch}
            question = _messages(rules, episodes, _prompt_limit(lab))
            read = partial(_read_labels, batch, candidates, schema)
            labels |= lab.ask(ROLE, f"label/{run}/{n}", question, read, schema)
    except LLMError as error:
        return error
    return tuple(labels[name] for name in seen)


def _object(**properties: JSON) -> JSON:
    """The schema of an object that has all these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _read_labels(
    batch: Iterable[str], candidates: Sequence[Capability], schema: Mapping[str, Any], text: str
) -> dict[str, dict[str, Label]]:
    labels = read_json(text, schema)["labels"]
    return {e: {c.name: Label(labels[e][c.name]) for c in candidates} for e in batch}


def _messages(rules: str, episodes: Seen, limit: int) -> list[Message]:
    each = (limit - len(rules)) // max(1, len(episodes)) - 40
    texts = [
        f"== {name}: {'solved' if e.passed else 'failed'}\n{compact(e.trajectory, each)}"
        for name, e in episodes.items()
    ]
    return opening_of(rules, "\n\n".join(texts))


def _fitting(seen: Seen, limit: int) -> Seen:
    """As many episodes as fit with a telling length each: failed and solved ones in turn."""
    most = max(2, limit // LEAST_TEXT)
    failed, solved = ([n for n, e in seen.items() if e.passed is side] for side in (False, True))
    chosen = failed[: max(most // 2, most - len(solved))]
    chosen += solved[: most - len(chosen)]
    return {name: seen[name] for name in sorted(chosen)}


def _prompt_limit(lab: Lab) -> int:
    limit = lab.prompt_limit(ROLE)
    assert limit is not None, "no model plays the analyst"
    return limit
