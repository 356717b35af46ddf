"""The roles besides the agent (`core.roles`), where models play them.

Every answer is appended to llm.jsonl with its cost. Answers to named questions (`usable`) are
stored and reused when the run is resumed. Answers of the simulated user and of a judge are part of
the episode, which is stored elsewhere, so only their cost is recorded. The simulator's answers are
stored too: an episode that is run again meets the same tools. A request that failed in an episode
is made again: nothing followed from it.

What cannot be used is returned to the model with the reason: `Unusable`, whose texts say what is
wrong, so that the model can correct it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trace_bench.core.decode import Limits, read
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.roles import RoleSettings
from trace_bench.core.store import Lines, canonical, read_lines, stable_seed
from trace_bench.core.text import fenced, json_in, spoken, without_surrogates
from trace_bench.core.types import IN_EPISODES, Count, Message, boundary_of
from trace_bench.llm.client import JSON, Client, Endpoint, LLMError, NoUsableAnswer, Usage

KEPT = ("simulator",)  # of IN_EPISODES, the ones that answer an equal question as they did before
REPEATED = 2000  # characters of an unusable answer that are sent back to the model
COMPLAINT = 1300  # characters of the explanation of what was wrong with it
IN_EPISODE = "episode"  # the name of the questions of roles in KEPT
REFUSED = (400, 422)  # the statuses of a server that does not take a schema
CUT = "It was cut off where its longest length ends: answer in fewer words."
T = TypeVar("T")


ANSWER = Limits(2**20)  # of the JSON in an answer


class Unusable(Exception):
    """An answer that cannot be used; the error's text is sent to the model."""


def read_json(text: str, schema: Mapping[str, Any]) -> Any:
    """The answer's JSON (`json_in`). Raises Unusable if there is none or it violates the schema
    (JSON Schema, 2020-12)."""
    try:
        data = without_surrogates(read(json_in(text), ANSWER))
    except ValueError as error:
        raise Unusable(f"it cannot be read as JSON: {error}.") from error
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema)
    problems = sorted(validator.iter_errors(data), key=lambda e: list(map(str, e.path)))
    if problems:
        words = "; ".join(f"at {e.json_path}: {_middle_cut(e.message)}" for e in problems[:5])
        raise Unusable(f"{words}.")
    return data


def _middle_cut(text: str) -> str:
    """A message that begins with the value and ends with what is wrong with it."""
    return text if len(text) <= 200 else f"{text[:100]} [...] {text[-100:]}"


def response_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The field of a request by which a server holds its answer to a schema. Objects are closed:
    they have the properties that the schema names and no others, in their order."""
    named = {"name": name, "strict": True, "schema": _closed(schema)}
    return {"type": "json_schema", "json_schema": named}


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    out = {key: _closed(part) for key, part in schema.items()}
    fields = out.get("properties")
    if out.get("type") != "object" or not isinstance(fields, dict):
        return out
    return {**out, "required": list(fields), "additionalProperties": False}


def read_block(text: str) -> str:
    """The fenced block of an answer. Raises Unusable unless there is one, whole."""
    blocks, unended = fenced(text)
    if unended:
        raise Unusable("its last block has no end (it may have been cut off).")
    if len(blocks) != 1:
        raise Unusable(
            f"it has {len(blocks)} blocks between ``` lines; needed: one (between lines of ````, "
            "where ``` lines are a part of it)."
        )
    return blocks[0].strip() + "\n"


@dataclass(frozen=True)
class Asked:
    """A line of llm.jsonl without the question's messages: an answer, a failure that the run
    continued without, or (`retract`) that answers are discarded."""

    role: str
    call: str | None = None  # the question's name
    digest: str | None = None
    text: str = ""
    thoughts: str = ""  # for readers of the file alone
    cut: bool = False  # truncated at max_tokens
    error: str | None = None
    status: int | None = None
    retract: str | None = None
    prompt_tokens: Count = 0
    completion_tokens: Count = 0

    def __post_init__(self) -> None:
        if self.digest is not None and self.call is None:
            raise ValueError("an answer without its question")


class Role:
    """A role that a model plays: its client and request settings.

    `schema`: whether questions whose answer is JSON say so in the field `response_format`. With
    `auto`, a server that refuses such a question and answers it without the field is not sent the
    field again, which is logged."""

    def __init__(
        self, endpoint: Endpoint, how: RoleSettings, log: Callable[[str], None] = print
    ) -> None:
        self.client = Client(endpoint)
        self._how, self._schema, self._log = how, how.schema, log
        self.tries = how.tries
        self._lock = threading.Lock()
        self._fields = {
            "model": how.model,
            "temperature": how.temperature,
            "top_p": 1.0,
            "max_tokens": how.max_tokens,
            **(how.extra or {}),
        }

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        stream: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> tuple[str, str, JSON]:
        """(text, thoughts, the full response). `stream` selects the seed. Raises LLMError."""
        seed = stable_seed(self._how.seed, stream) % 2**31 if stream else self._how.seed
        server = stable_seed(stream, canonical(messages[:2])) % len(self.client.endpoint.urls)
        body = {**self._fields, "messages": list(messages), "seed": seed}
        if schema is None or self._schema == "never":
            return self._said(body, server)
        held = {**body, "response_format": response_format("answer", schema)}
        try:
            return self._said(held, server)
        except LLMError as error:
            if self._schema == "always" or error.status not in REFUSED:
                raise
            said = self._said(body, server)  # raises if it was not the field
            with self._lock:
                again, self._schema = self._schema == "never", "never"
            if not again:
                self._log(
                    f"{self._fields['model']} is asked without the schema of its answers from here "
                    f"on, since its server refuses response_format: {error}"
                )
            return said

    def _said(self, body: JSON, server: int) -> tuple[str, str, JSON]:
        reply = self.client.ask("/chat/completions", body, server)
        try:
            message = reply["choices"][0]["message"]
            thoughts, text = spoken(message)
            text = text.strip() if thoughts else text
            return text or str(message.get("refusal") or ""), thoughts, reply
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise LLMError(f"the server's answer has no message: {str(reply)[:200]}") from error

    @property
    def characters(self) -> int:
        """The prompt limit in characters, at about three characters per token; leaves space for the
        answer and for an unusable answer that is sent back."""
        limit = 3 * (self._how.context - self._how.max_tokens) - REPEATED - COMPLAINT - 200
        return max(1000, limit)


class Roles:
    """All roles of a run. `players`: the roles played by models; programs play the others."""

    def __init__(self, players: Mapping[str, Role], path: Path) -> None:
        self._players = dict(players)
        self._lines = Lines(path, Asked)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], Asked] = {}  # (role, call, question's digest)
        self._usage: dict[str, Usage] = {}
        for line in self._lines:
            self._remember(line)

    def role(self, name: str) -> Role | None:
        """The model in a role; None if a program plays it."""
        return self._players.get(name)

    def ask(
        self,
        role: str,
        messages: Sequence[Mapping[str, Any]],
        schema: Mapping[str, Any] | None = None,
    ) -> str:
        """`protocols.Ask`: an answer that is part of an episode. Raises EpisodeError at the role's
        boundary if the request fails."""
        boundary = boundary_of(role).value
        if role not in self._players or role not in IN_EPISODES:
            raise EpisodeError(boundary, f"no model plays the role {role!r}")
        try:
            if role in KEPT:
                return self._answer(role, IN_EPISODE, [dict(m) for m in messages], schema).text
            return self._ask(role, messages, None, schema).text
        except LLMError as error:
            raise EpisodeError(boundary, f"the {role}: {error}") from error

    def _answer(
        self, role: str, call: str, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> Asked:
        """The answer to a named question; names are unique per role. Raises LLMError. A stored
        failure is repeated, since later steps depended on it (unless `retract`ed, or in KEPT)."""
        digest = _digest(messages)
        with self._lock:
            line = self._known.get((role, call, digest))
        if line is None or (line.error is not None and role in KEPT):
            return self._ask(role, messages, (call, digest), schema)
        if line.error is not None:
            raise LLMError(line.error, line.status)
        return line

    def usable(
        self,
        role: str,
        call: str,
        messages: Sequence[Message],
        read: Callable[[str], T],
        schema: Mapping[str, Any] | None = None,
    ) -> T:
        """The answer, parsed by `read`. If that raises Unusable, the model is asked again with the
        reason, `tries` times in all. Raises LLMError, and UserError when the model is out of reach:
        then the same command asks again."""
        tries, talk, why = self._players[role].tries, list(messages), ""
        for attempt in range(tries):
            try:
                answer = self._answer(role, f"{call}/{attempt}", talk, schema)
            except LLMError as error:
                if not error.outage:
                    raise
                self.retract(role, f"{call}/{attempt}")
                raise UserError(
                    f"the {role} does not answer: {error}. The same command goes on from here; or "
                    f"change `llm.{role}`."
                ) from error
            try:
                if answer.cut:
                    raise Unusable(CUT)
                return read(answer.text)
            except Unusable as error:
                why = str(error)[: COMPLAINT - 200]
            talk = [
                *messages,
                {"role": "assistant", "content": _shortened(answer.text)},
                {"role": "user", "content": f"This answer cannot be used: {why}\nAnswer again."},
            ]
        raise NoUsableAnswer(f"{role}, {call}: no usable answer in {tries} tries: {why}")

    def retract(self, role: str, calls: str) -> None:
        """Discards the answers to questions whose name begins with `calls`."""
        self._write({"role": role, "retract": calls})

    def usage(self) -> dict[str, dict[str, int]]:
        """Requests and tokens of the roles played by models, including earlier parts of the run and
        other processes that ran episodes for it (`llm-*.jsonl` in any subfolder)."""
        usage = {name: Usage(**vars(self._usage.get(name, Usage()))) for name in self._players}
        for name, player in self._players.items():
            usage[name].retries = player.client.usage.retries  # since this program was started
        for path in sorted(self._lines.path.parent.rglob("llm-*.jsonl")):
            for line in read_lines(path, Asked):
                if line.role in usage:
                    _count(usage[line.role], line)
        return {name: vars(used) for name, used in usage.items()}

    def close(self) -> None:
        for player in self._players.values():
            player.client.close()
        self._lines.close()

    def _ask(
        self,
        role: str,
        messages: Sequence[Mapping[str, Any]],
        name: tuple[str, str] | None,
        schema: Mapping[str, Any] | None,
    ) -> Asked:
        """`name`: the question's name and digest; None for an answer that is in the episode."""
        line: JSON = {"role": role}
        if name is not None:
            line |= {"call": name[0], "digest": name[1], "messages": list(messages)}
        try:
            stream = "" if name is None else name[0]
            text, thoughts, reply = self._players[role].ask(messages, stream, schema)
        except LLMError as error:
            self._write({**line, "error": str(error), "status": error.status})
            raise
        choice, cost = reply["choices"][0], Usage()
        cut = isinstance(choice, dict) and choice.get("finish_reason") == "length"
        cost.add(reply)
        tokens = {"prompt_tokens": cost.prompt_tokens, "completion_tokens": cost.completion_tokens}
        answer: JSON = {"thoughts": thoughts} if thoughts else {}
        if name is not None:
            answer |= {"text": text, **({"cut": True} if cut else {})}
        self._write({**line, **answer, **tokens})
        return Asked(role, text=text, cut=cut)

    def _write(self, line: JSON) -> None:
        with self._lock:
            self._lines.append(line)
            self._remember(Asked(**{k: v for k, v in line.items() if k != "messages"}))

    def _remember(self, line: Asked) -> None:
        if line.retract is not None:
            for key in [*self._known]:
                if key[0] == line.role and key[1].startswith(line.retract):
                    del self._known[key]
            return
        _count(self._usage.setdefault(line.role, Usage()), line)
        if line.call is not None and line.digest is not None:
            self._known[line.role, line.call, line.digest] = line


def _digest(messages: Sequence[Mapping[str, Any]]) -> str:
    return hashlib.sha256(canonical(list(messages)).encode()).hexdigest()[:16]


def _shortened(text: str) -> str:
    """An answer to send back, shortened to its start and end so that the question still fits."""
    half = REPEATED // 2 - 20
    return text if len(text) <= REPEATED else f"{text[:half]}\n[... cut ...]\n{text[-half:]}"


def _count(usage: Usage, line: Asked) -> None:
    usage.requests += 1
    usage.failures += line.error is not None
    usage.prompt_tokens += line.prompt_tokens
    usage.completion_tokens += line.completion_tokens
