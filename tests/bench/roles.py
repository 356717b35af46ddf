"""How many answers of SmolLM2 are usable in each role, with and without the schema of the answer.

    python -m trace_bench.models get smollm2
    python tests/bench/roles.py [--count 20] [--schema never always] [--roles judge user]

The model is served by `trace_bench.serve` on this machine; it answers greedily and once, but for
the roles that ask again by themselves (judge and simulator twice, user three times). Questions are
those of the project, about the embedded phone world, and the same in every run. User, generator and
reflector answer in words or code, for which there is no schema. An answer is usable
if the role's own reader takes it; `right` is given where a program knows the truth.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "examples"))

from annotate import question_of, read_annotation
from annotate import schema_of as annotation_schema
from playing import play
from recordings import PHONE, recorded
from servers.agent import serving

from trace_bench.checklists.items import Item, read_checklists
from trace_bench.checklists.judges import ProgramJudge, Scene
from trace_bench.checklists.model_judge import Controlled, ModelJudge, read_verdicts
from trace_bench.checklists.talk import turns_of
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.types import AgentSpec, Trajectory
from trace_bench.envs.recorded.tools import ModelSimulator, exchanges
from trace_bench.envs.tau2.user import AskedUser
from trace_bench.llm.client import Endpoint, LLMError
from trace_bench.llm.roles import ROLES, Role, Roles
from trace_bench.llm.structured import read_block
from trace_bench.methods.looking import analyst
from trace_bench.methods.looking.capabilities import Analysed, Capability
from trace_bench.methods.reflectors import ModelReflector
from trace_bench.methods.trace.generate.checks import violations
from trace_bench.methods.trace.generate.questions import request
from trace_bench.methods.trace.settings import SynthesisSettings
from trace_bench.methods.transcript import conversation, feedback
from trace_bench.models import place, read_kept
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.scripted import RandomPolicy, ReferencePolicy
from trace_bench.serve.local import Local, LocalEngine
from trace_bench.serve.request import ServeSettings
from trace_bench.settings.schema import RoleSettings

PLACES, CONTEXT = 10, 4096  # conversations at once, tokens of one
SHOWN = 2048  # tokens of a question and its answer, for roles that shorten what they show
ANSWERS = {
    "user": 128, "analyst": 512, "generator": 384, "reflector": 256, "judge": 256,
    "annotator": 768, "simulator": 256,
}  # fmt: skip
"""The most tokens of an answer."""
IN_WORDS = ("user", "generator", "reflector")  # answers that are no JSON have no schema
LACKS = [
    Capability("recovers_from_errors", "Puts right the cause of a failed call and repeats it."),
    Capability("asks_when_missing", "Asks the user for what a call needs and was not said."),
]


@dataclass
class Asking:
    """What the roles need of a lab (`protocols.Lab`): questions to models, each answered once."""

    roles: Roles
    seed: int = 0

    def prompt_limit(self, role: str) -> int:
        player = self.roles.role(role)
        assert player is not None
        return player.characters

    def ask(self, *question: Any) -> Any:
        return self.roles.usable(*question)

    def retract(self, role: str, calls: str) -> None:
        self.roles.retract(role, calls)


Question = Callable[[Asking], dict[str, bool]]
"""Asks, and returns what is true of the answer; `usable` at least."""


def questions(role: str, count: int) -> list[Question]:
    makers: Mapping[str, Callable[[int], Iterator[Question]]] = {
        "analyst": analysts, "generator": generators, "reflector": reflectors, "judge": judges,
        "annotator": annotators, "simulator": simulators, "user": users,
    }  # fmt: skip
    return list(makers[role](count))


def episodes(count: int) -> list[Analysed]:
    """Episodes of the dev split: every other one by its reference, the rest by random calls."""
    tasks = PHONE.tasks("dev")[:count]
    agent, seeds = AgentSpec("scripted"), list(range(count))
    good = play(ReferencePolicy(PHONE), PHONE, agent, tasks, seeds)
    bad = play(RandomPolicy(), PHONE, agent, tasks, seeds)
    mixed = [pair[n % 2] for n, pair in enumerate(zip(good, bad, strict=True))]
    return [Analysed(task, played) for task, played in zip(tasks, mixed, strict=True)]


def analysts(count: int) -> Iterator[Question]:
    """Half of them propose capabilities, the other half label four episodes."""
    for n, seen in enumerate(_fours(count)):

        def discover(lab: Asking, seen: analyst.Seen = seen) -> dict[str, bool]:
            try:
                analyst.discover(lab, seen)  # type: ignore[arg-type]
            except UserError:
                return {"usable": False, "proposals": False}
            return {"usable": True, "proposals": True}

        def label(lab: Asking, seen: analyst.Seen = seen) -> dict[str, bool]:
            labels = analyst._run(lab, seen, LACKS, 0)  # type: ignore[arg-type]
            usable = not isinstance(labels, LLMError)
            return {"usable": usable, "labels": usable}

        yield discover if n % 2 else label


def _fours(count: int) -> Iterator[analyst.Seen]:
    seen = episodes(4 * count)
    for n in range(0, len(seen), 4):
        yield {f"T{place:03d}": one for place, one in enumerate(seen[n : n + 4], start=1)}


def _failed(count: int) -> list[Trajectory]:
    return [s.trajectory for s in episodes(4 * count) if not s.passed][:count]


def generators(count: int) -> Iterator[Question]:
    for n, failed in enumerate(_failed(count)):
        task = PHONE.tasks("dev")[n]
        tools = {t["function"]["name"]: t for t in PHONE.make().reset(task).tools[:6]}

        def ask(
            lab: Asking, n: int = n, failed: Trajectory = failed, tools: Any = tools
        ) -> dict[str, bool]:
            limit = lab.prompt_limit("generator")
            words = request(LACKS[n % 2], tools, [failed], limit, SynthesisSettings())
            try:
                code = lab.ask("generator", f"m/{n}", words, read_block)
            except LLMError:
                return {"usable": False}
            return {"usable": True, "allowed": not violations(code)}

        yield ask


def reflectors(count: int) -> Iterator[Question]:
    failed = _failed(2 * count)
    for n in range(count):
        some = failed[2 * n : 2 * n + 2]
        records = [{"Feedback": feedback(t), "Conversation": conversation(t)} for t in some]

        def ask(lab: Asking, records: Sequence[Mapping[str, Any]] = records) -> dict[str, bool]:
            try:
                ModelReflector(lab, 4)("Use the tools.", records)  # type: ignore[arg-type]
            except LLMError:
                return {"usable": False}
            return {"usable": True}

        yield ask


def judges(count: int) -> Iterator[Question]:
    """One item of a recorded dialogue each, in turn one that holds and one that does not."""
    found: dict[bool, list[tuple[Item, Scene]]] = {True: [], False: []}
    for record in recorded(4 * count):
        before, turns = turns_of(record["messages"])
        (checklist, *_) = read_checklists(record["checklists"], record["uuid"])
        for turn, items in zip(turns, checklist.turns, strict=True):
            for item in items:
                for end in range(1, len(turn.steps) + 1):
                    part = type(turn)(turn.user, turn.steps[:end])
                    scene = Scene(record["uuid"], tuple(before), part)
                    truth = bool(ProgramJudge().satisfied([item], scene))
                    found[truth].append((item, scene))
    for n in range(count):
        truth = n % 2 == 0
        item, scene = found[truth][n * 3]

        def ask(
            lab: Asking, item: Item = item, scene: Scene = scene, truth: bool = truth
        ) -> dict[str, bool]:
            answers: list[str] = []

            def noting(role: str, messages: Any, schema: Any = None) -> str:
                answers.append(lab.roles.ask(role, messages, schema))
                return answers[-1]

            try:
                said = bool(ModelJudge(noting, batch=False).satisfied([item], scene))
            except EpisodeError:
                return {"usable": False, "rewarded though false": False}
            return {
                "usable": not _says_yes_to_all(answers[-1]),
                "right": said == truth,
                "affirms the control": _says_yes_to_all(answers[-1]),
                "rewarded though false": said and not truth,
            }

        yield ask


def _says_yes_to_all(answer: str) -> bool:
    for control in (0, 1):
        try:
            read_verdicts(answer, 2, control)
        except Controlled:
            continue
        return False
    return True


def annotators(count: int) -> Iterator[Question]:
    for record in recorded(2 * count)[:count]:
        _, turns = turns_of(record["messages"])

        def ask(lab: Asking, record: Any = record, turns: Any = turns) -> dict[str, bool]:
            read = functools.partial(read_annotation, turns=len(turns))
            words, schema = question_of(turns, record["tools"]), annotation_schema(len(turns))
            try:
                lab.ask("annotator", record["uuid"], words, read, schema)
            except LLMError:
                return {"usable": False}
            return {"usable": True}

        yield ask


def simulators(count: int) -> Iterator[Question]:
    """The last call of a recording, after all others and their answers; what the real tool said is
    the truth."""
    for record in recorded(3 * count):
        there = exchanges(turns_of(record["messages"])[1])
        by_name = {tool["function"]["name"]: tool for tool in record["tools"]}
        if not there or there[-1][0].name not in by_name or count == 0:
            continue
        count -= 1

        def ask(lab: Asking, there: Any = there, by_name: Any = by_name) -> dict[str, bool]:
            *others, (call, truth) = there
            try:
                said = ModelSimulator(lab.roles.ask).answer(call, by_name[call.name], others, ())
            except EpisodeError:
                return {"usable": False}
            return {"usable": True, "right": said == truth}

        yield ask


def users(count: int) -> Iterator[Question]:
    """The opening message, under the guidelines of τ²-bench."""
    for task in PHONE.tasks("dev")[:count]:
        opening = [m for m in PHONE.make().reset(task).messages if m["role"] == "user"]
        scenario = {"user_scenario": {"instructions": f"Your request: {opening[-1]['content']}"}}

        def ask(lab: Asking, scenario: Any = scenario) -> dict[str, bool]:
            try:
                AskedUser(scenario, "airline", (), lab.roles.ask).opening()
            except EpisodeError:
                return {"usable": False}
            return {"usable": True}

        yield ask


@contextmanager
def server() -> Iterator[str]:
    """SmolLM2's address."""
    folder = read_kept(place(None), "smollm2").folder
    policy = LocalPolicy(folder, batch=PLACES, context=CONTEXT, threads=1)
    agent = AgentSpec(str(folder))
    most = max(ANSWERS.values())
    engine = LocalEngine(policy, agent, most)
    with serving(Local(engine), agent, ServeSettings(tokens=most, body=2**22)) as served:
        yield f"{served.url}/v1"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    both = ["never", "always"]
    parser.add_argument("--schema", nargs="+", default=both, choices=both)
    parser.add_argument("--roles", nargs="+", default=list(ROLES))
    given = parser.parse_args(arguments)
    with server() as url, tempfile.TemporaryDirectory() as folder:
        for name in given.roles:
            asked = questions(name, given.count)
            schemas: list[Any] = ["never"] if name in IN_WORDS else given.schema
            for schema in schemas:
                begin = time.monotonic()
                role = Role(
                    Endpoint((url,), retries=0, deadline=900.0, concurrency=PLACES),
                    RoleSettings(
                        model="base", seed=0, max_tokens=ANSWERS[name], context=SHOWN, tries=1,
                        schema=schema,
                    ),
                )  # fmt: skip
                # A file for each question: their names are equal.
                labs = [
                    Asking(Roles({name: role}, Path(folder) / schema / name / f"{n}.jsonl"))
                    for n in range(len(asked))
                ]
                with ThreadPoolExecutor(PLACES) as threads:
                    pairs = list(zip(asked, labs, strict=True))
                    found = list(threads.map(lambda pair: pair[0](pair[1]), pairs))
                role.client.close()
                facts = list(dict.fromkeys(key for f in found for key in f))
                told = ", ".join(f"{k} {sum(f.get(k, False) for f in found)}" for k in facts)
                tokens = sum(lab.roles.usage()[name]["completion_tokens"] for lab in labs)
                seconds = time.monotonic() - begin
                print(
                    f"{name}, schema {schema}: of {len(found)}: {told} "
                    f"({tokens} tokens, {seconds:.0f} s)",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
