"""Does our τ² score agree with the benchmark's own evaluator? Both judge the same episodes.

    .venv/bin/python tests/tau2_scores.py CHECKOUT PYTHON [DOMAIN ...] [some=N]

CHECKOUT is a checkout of github.com/sierra-research/tau2-bench at commit 377cecf, for
banking_knowledge at the tag pre-v1.0.1 (v1.0.1 grades otherwise); PYTHON an
interpreter with its packages (3.12). `some=N`: every N-th task only. Every task is played by our
suite in the ways of `ways`; then the benchmark's environment makes the same calls, its evaluator
gives its reward, and the two verdicts and the agent's failed calls are compared. Exit status 1 if
anything differs.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

BANKING = "banking_knowledge"
DOMAINS = ("airline", "retail", "telecom")  # and BANKING, if it is named
STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
Turns = list[dict[str, Any]]  # the agent's messages


# -- our side -------------------------------------------------------------------------------------


def ways(own: Turns, others: Turns, rng: random.Random) -> dict[str, Turns]:
    """The agent's turns in each way, from the task's own reference and another task's."""
    acts = [n for n, turn in enumerate(own) if turn.get("tool_calls")]
    beside = own
    if acts:
        told = {**own[acts[-1]], "content": own[-1]["content"]}
        beside = [*own[: acts[-1]], told, *own[acts[-1] + 1 : -1], _text("Done.")]
    return {
        "wanted": own,
        "nothing": [_text("")],
        "words_only": own[-1:],
        "told_beside_a_call": beside,
        "cut_off": [own[n] for n in acts],
        "last_call_missing": [turn for n, turn in enumerate(own) if n not in acts[-1:]],
        "others_calls_first": [*[turn for turn in others if turn.get("tool_calls")][:6], *own],
        "other_types": [_changed(turn, rng) for turn in own],
        "transfer_too": [_call("transfer_to_human_agents", {"summary": "something else"}), *own],
        "ten_failures_first": [_call("no_such_tool", {})] * 10 + own,
        "nine_failures_first": [_call("no_such_tool", {})] * 9 + own,
    }


def _text(words: str) -> dict[str, Any]:
    return {"role": "assistant", "content": words}


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {**_text(""), "tool_calls": [{"id": "x", "type": "function", "function": function}]}


def _changed(turn: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same call with some arguments of another type or order."""
    if not turn.get("tool_calls"):
        return turn
    function = turn["tool_calls"][0]["function"]
    return _call(function["name"], _other(json.loads(function["arguments"]), rng))


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: _other(entry, rng) for key, entry in value.items()}
    if isinstance(value, list):
        return [_other(entry, rng) for entry in value]
    if rng.random() < 0.5 or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return rng.choice([float(value), str(value)])
    if isinstance(value, str) and value.isdigit():
        return int(value)
    if isinstance(value, str) and value.startswith("{"):  # banking's arguments of arguments
        return json.dumps(_other(json.loads(value), rng))
    return value


def played(domain: str, every: int) -> Iterator[dict[str, Any]]:
    """One record for each task and way: what was said and called, and our verdict."""
    from sandboxes import in_process

    suite = in_process("tau2", domain)
    tasks = suite.tasks("base")[::every]
    for number, task in enumerate(tasks):
        other = tasks[(number + 7) % len(tasks)]
        rng = random.Random(f"{task.id} other_types")
        made = ways(list(suite.reference(task)), list(suite.reference(other)), rng)
        for way, turns in made.items():
            about = {"domain": domain, "task": task.data["record"]["id"], "way": way}
            yield {**about, **_episode(suite.make(), task, turns)}


def _episode(env: Any, task: Any, turns: Turns) -> dict[str, Any]:
    step = env.reset(task)
    # Not the opening itself: banking's scenarios name the words that end a conversation.
    talk: Turns = [{"role": "user", "content": "Hello."}]
    failed: list[bool] = []
    for turn in turns:
        if step.done:
            break
        talk.append(turn)
        before, errors = len(env._calls), env._errors
        step = env.step(turn)
        if turn.get("tool_calls"):  # one
            failed.append(env._errors > errors)
        else:
            for call in env._calls[before:]:
                made = _call(call.name, call.arguments)["tool_calls"]
                talk.append({"role": "user", "content": None, "tool_calls": made})
            talk += map(dict, step.messages)
    score = step.score if step.done else env.score()
    return {"talk": talk, "failed": failed, "success": score.success, "parts": score.details}


# -- the benchmark's side, in its own interpreter -------------------------------------------------


def compare(checkout: Path, path: Path) -> int:
    sys.path.insert(0, str(checkout / "src"))
    os.environ.setdefault("TAU2_DATA_DIR", str(checkout / "data"))
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from loguru import logger
    from tau2.data_model.tasks import Task

    logger.remove()
    with path.open(encoding="utf-8") as lines:
        domains = {json.loads(line)["domain"] for line in lines}
    _load_once(domains)
    tasks = {}
    for domain in domains:
        place = checkout / "data" / "tau2" / "domains" / domain / "tasks.json"
        for record in json.loads(place.read_text(encoding="utf-8")):
            if record["evaluation_criteria"]:
                record["evaluation_criteria"]["nl_assertions"] = None
            tasks[domain, record["id"]] = Task.model_validate(record)
    compared: Counter[tuple[str, str]] = Counter()
    solved: Counter[tuple[str, str]] = Counter()
    differ = 0
    with path.open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            theirs, failed = _theirs(record, tasks[record["domain"], record["task"]])
            key = (record["domain"], record["way"])
            compared[key] += 1
            solved[key] += theirs
            if theirs != record["success"] or failed != record["failed"]:
                differ += 1
                print(
                    f"DIFFERS: {key} {record['task']}: theirs {theirs}, ours {record['success']} "
                    f"{record['parts']}; calls failed: theirs {failed}, ours {record['failed']}"
                )
    for (domain, way), count in compared.items():
        print(f"{domain:14} {way:20} {count:4} episodes, {solved[domain, way]:4} solved")
    print(f"{compared.total()} episodes compared, {differ} differences")
    return 1 if differ or not compared else 0


def _load_once(domains: Collection[str]) -> None:
    """The databases are parsed once, and copied after that, and banking's documents are read once;
    ids are the same in every replay."""
    import pickle
    import uuid

    from tau2.domains.telecom import tools
    from tau2.environment.db import DB

    original, known = DB.load.__func__, {}

    def load(cls: Any, path: Any) -> Any:
        if (cls, str(path)) not in known:
            known[cls, str(path)] = pickle.dumps(original(cls, path), protocol=5)
        return pickle.loads(known[cls, str(path)])

    DB.load = classmethod(load)

    class Ids:
        @staticmethod
        def uuid4() -> uuid.UUID:
            return uuid.UUID(int=1)

    tools.uuid = Ids
    if BANKING in domains:
        from tau2.domains.banking_knowledge import environment

        environment.get_knowledge_base = cache(environment.get_knowledge_base)


def _theirs(record: Mapping[str, Any], task: Any) -> tuple[bool, list[bool]]:
    """Whether their evaluator gives the full reward, and which of the agent's calls failed."""
    from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
    from tau2.data_model.simulation import SimulationRun, TerminationReason
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.registry import registry

    variant = {"retrieval_variant": "grep_only"} if record["domain"] == BANKING else {}
    world = registry.get_env_constructor(record["domain"])(solo_mode=False, **variant)
    state = task.initial_state
    world.set_state(
        initialization_data=state.initialization_data if state else None,
        initialization_actions=state.initialization_actions if state else None,
        message_history=[],
    )
    greeting = AssistantMessage(role="assistant", content="Hi! How can I help you today?")
    messages: list[Any] = [greeting]
    errors, failed = 0, []
    ended = TerminationReason.MAX_STEPS
    for said in record["talk"]:
        mine = said["role"] == "assistant"
        calls = said.get("tool_calls") or ()
        kind = AssistantMessage if mine else UserMessage
        made = [
            ToolCall(
                id=f"call_{len(messages)}_{n}",
                name=call["function"]["name"],
                arguments=json.loads(call["function"]["arguments"]),
                requestor=said["role"],
            )
            for n, call in enumerate(calls)
        ]
        content = said["content"] or None
        messages.append(kind(role=said["role"], content=content, tool_calls=made or None))
        for call in made:
            answer = world.get_response(call)
            messages.append(answer)
            errors += answer.error
            failed += [answer.error] if mine else []
        if errors >= 10:
            ended = TerminationReason.TOO_MANY_ERRORS
            break
        if not mine and any(stop in (content or "") for stop in STOPS):
            ended = TerminationReason.USER_STOP
            break
    times = {"start_time": "", "end_time": "", "duration": 0.0}
    said = {"termination_reason": ended, "messages": messages}
    run = SimulationRun(id="x", task_id=task.id, **times, **said)
    more = {"env_kwargs": variant} if variant else {}
    found = evaluate_simulation(
        run, task, EvaluationType.ALL_WITH_NL_ASSERTIONS, False, record["domain"], **more
    )
    return found.reward == 1.0, failed


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--theirs"]:
        return compare(Path(arguments[1]), Path(arguments[2]))
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parent), str(here.parents[1])]
    if len(arguments) < 2:
        sys.exit(__doc__)
    checkout, python, *more = arguments
    every = [int(word.removeprefix("some=")) for word in more if word.startswith("some=")]
    domains = [word for word in more if word in (*DOMAINS, BANKING)] or DOMAINS
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "episodes.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for domain in domains:
                for record in played(domain, every[0] if every else 1):
                    file.write(json.dumps(record) + "\n")
        theirs = [python, str(here), "--theirs", checkout, str(path)]
        return subprocess.run(theirs, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
