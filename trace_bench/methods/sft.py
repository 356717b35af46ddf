"""Supervised fine-tuning on demonstrations: a LoRA adapter without any rollout.

The paper's baseline from the Agent Data Protocol. In the phone world the demonstrations are by
default general ones of the mixture that the tiny agent knows already, so little is to be expected
of them, and a gain of a method over this one is not a gain from demonstrations alone. In other
worlds the training tasks are solved (`play.demonstrations`). The budget stays unspent.

Conversations of others may be of any world (`python -m trace_bench.tiny demonstrate`): their tools
are their own. One that cannot be imitated is left out, and counted in the log with the reason.
They are the lines of `method.data`, each a conversation in OpenAI's format: it has `messages`, and
the `tools` that were offered. An assistant's message with `weight` 0 is not learned, as in OpenAI's
fine-tuning. The older `function_call` is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trace_bench.core.chat import call_json, read_call, with_guidance
from trace_bench.core.decode import Limits, Unreadable, decode
from trace_bench.core.errors import UserError
from trace_bench.core.factory import load
from trace_bench.core.protocols import Lab, Method, MethodPlan, Need, PlannedRun, RunContext, Suite
from trace_bench.core.store import bounded_lines, stable_seed
from trace_bench.core.types import AgentSpec, Message, Positive, Task
from trace_bench.methods.tuning import HERE, Tuning, TuningSettings
from trace_bench.play.demonstrations import Demonstration
from trace_bench.play.demonstrations import demonstrations as solved

if TYPE_CHECKING:
    from trace_bench.policies.chat import Chat
    from trace_bench.trainers.tree import Tokens

LONGEST = 64 * 2**20  # bytes of a conversation
MARK = "demonstrations from method.data, whose rollouts no budget here has paid for"


@dataclass(frozen=True)
class SftSettings(TuningSettings):
    """`method.*` of `method=sft`."""

    data: str | None = None
    """A file `.jsonl`, or a folder of them, whose lines are conversations in OpenAI's chat format;
    None: in the phone world the project's own demonstrations, drawn from the mixture that the tiny
    agent was trained on, in others the training tasks, played by their references."""
    demonstrations: Positive = 1024
    """How many of them are used, the first ones that fit."""


class Sft(Method):
    """A LoRA adapter fine-tuned on demonstrations; no rollout is spent."""

    def __init__(self, settings: SftSettings, run: RunContext) -> None:
        self.settings, self.context = settings, run

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with the adapter `sft`, used for every task; it goes on from the adapter
        that the base agent has, if any, and demonstrations are read under its prompt."""

        def sequences(context: int) -> list[Tokens]:
            chat = Chat(load_tokenizer(base.model), base.model, self.context.thinking)
            talks = self._conversations(tasks, seed, lab)
            return demonstrations(chat, base, talks, context, lab.log)

        from trace_bench.policies.chat import Chat
        from trace_bench.policies.loading import load_tokenizer

        seed = stable_seed(lab.seed, "sft")
        return Tuning("sft", base, lab, self.settings, sequences).run()

    def plan(self, run: PlannedRun) -> MethodPlan:
        needs = [HERE]
        marks = () if self.settings.data is None else (MARK,)
        if self.settings.data is not None:
            next(read(Path(self.settings.data)), None)  # what cannot be read is refused here
        if self._plays:
            needs.append(Need("env", Suite.reference, "docs/methods.md", "Set `method.data`."))
            marks = (f"given the references of {run.tasks} tasks",)
        return MethodPlan(
            needs=tuple(needs),
            adapters=1,
            trains=True,
            demonstrations=self.settings.demonstrations,
            marks=marks,
        )

    @property
    def _plays(self) -> bool:
        """Whether the training tasks are the demonstrations."""
        return self.settings.data is None and not self.context.general_demonstrations

    def _conversations(self, tasks: Sequence[Task], seed: int, lab: Lab) -> Iterable[Demonstration]:
        count = self.settings.demonstrations
        if self._plays:
            return played(lab.suite, tasks, count, seed, self.context.max_turns)
        if self.settings.data is None:
            return general(self.context.general_demonstrations, count, seed)
        return others(Path(self.settings.data), count, lab.log)


def demonstrations(
    chat: Chat,
    base: AgentSpec,
    talks: Iterable[Demonstration],
    context: int,
    log: Callable[[str], None],
) -> list[Tokens]:
    """The demonstrations as tokens, under the base agent's prompt. Those longer than `context`
    tokens, and those of which nothing is learned, are left out and counted in the log. Raises
    UserError if none is left."""
    every = [
        tokens_of(chat, replace(each, messages=with_guidance(each.messages, base.prompt)))
        for each in talks
    ]
    learned = [s for s in every if len(s.ids) <= context and len(s.sampled)]
    if len(learned) < len(every):
        log(
            f"sft: {len(every) - len(learned)} of {len(every)} demonstrations are left out: longer "
            f"than the context of {context} tokens, or nothing in them is learned"
        )
    if not learned:
        raise UserError(
            "method=sft has no demonstration with something to learn and at most "
            f"{context} tokens, the context. Change `method.data` or `model`."
        )
    return learned


def tokens_of(chat: Chat, talk: Demonstration) -> Tokens:
    """A conversation as tokens up to the agent's last turn; `sampled` are those to learn."""
    from trace_bench.trainers.tree import Tokens

    ids: list[int] = []
    sampled: list[int] = []
    pending: list[Any] = []
    learned = iter(talk.learned)
    for place, message in enumerate(talk.messages):
        if message["role"] != "assistant":
            pending.append(message)
            continue
        ids += chat.following(pending, True) if ids else chat.first(pending, talk.tools)
        turn = chat.turn(talk.messages[:place], talk.tools, message)
        if next(learned):
            sampled += range(len(ids), len(ids) + len(turn))
        ids += turn
        pending = []
    return Tokens.of(ids, sampled, [0.0] * len(sampled))


def general(place: str, count: int, seed: int) -> Iterator[Demonstration]:
    """`count` of a world's general demonstrations: in the phone world people, words and wordings
    that no split shares, capabilities lacking as often as in the tiny agent's own training."""
    one = load(place, "Suite.general_demonstrations").target
    for n in range(count):
        messages, tools = one(seed % 2**31 * 1_000_000 + n)
        learned = (True,) * sum(m["role"] == "assistant" for m in messages)
        yield Demonstration("", tuple(messages), tuple(tools), learned)


def played(
    suite: Suite, tasks: Sequence[Task], count: int, seed: int, max_turns: int
) -> Iterator[Demonstration]:
    """`count` episodes of the training tasks as they are solved, with mistakes that are put right.
    Raises UserError where a model plays the user, and if none ends in success."""
    if suite.asks_user():
        raise UserError(
            "method=sft without `method.data` plays the references of the training tasks, and the "
            f"user of {suite.name}/{suite.variant} is played by a model. Set `method.data`."
        )
    return solved(suite, tasks, count, seed=seed, max_turns=max_turns)


def others(place: Path, count: int, log: Callable[[str], None]) -> Iterator[Demonstration]:
    """The first `count` conversations of a file or folder to learn from. UserError without any."""
    used = 0
    refused: Counter[str] = Counter()
    first: dict[str, str] = {}
    for talk in read(place):
        if why := objection(talk):
            refused[why] += 1
            first.setdefault(why, talk.task)
        else:
            used += 1
            yield talk
        if used == count:
            break
    told = "; ".join(f"{n} for {why} (first: {first[why]})" for why, n in refused.most_common())
    if not used:
        raise UserError(f"method.data={place} has no demonstration that fits: {told or 'empty'}.")
    if refused:
        log(f"sft: {used} conversations are used, {refused.total()} left out: {told}")


def objection(talk: Demonstration) -> str | None:
    """Why a conversation is none that an agent should imitate."""
    roles = [m["role"] for m in talk.messages]
    if "assistant" not in roles or roles[0] == "assistant":
        return "no message before the agent's, or none of the agent's"
    calls = [call for m in talk.messages for call in m.get("tool_calls", ())]
    ids = {call["id"] for call in calls}
    if any(m["role"] == "tool" and m["tool_call_id"] not in ids for m in talk.messages):
        return "a tool's result that answers no call"
    names = {tool["function"]["name"] for tool in talk.tools}
    for call in calls:
        try:
            name, _ = read_call(call)
        except ValueError:
            return "a call that could not be read"
        if name not in names:
            return f"a call of a tool that is not offered, {name}"
    return None


def read(place: Path) -> Iterator[Demonstration]:
    """The conversations of a file, or of all files in a folder and below it, by name; `task` is
    file and line. Raises UserError naming file, line and field of what is not in its format."""
    files = [place]
    if place.is_dir():
        files = sorted(path for path in place.rglob("*.jsonl") if path.is_file())
        if not files:
            raise UserError(
                f"method.data={place} holds no file that ends in .jsonl. Change `method.data`."
            )
    fix = "Change `method.data`."
    for path in files:
        try:
            for number, line in bounded_lines(path, LONGEST, fix):
                yield read_line(line, f"{path}, line {number}")
        except FileNotFoundError as error:
            raise UserError(f"{path} cannot be read ({error}). {fix}") from error


def read_line(text: bytes, where: str) -> Demonstration:
    """The conversation of a line; `where` it stands is named in its errors, all UserErrors."""
    try:
        return _dialogue(decode(text, _Line, Limits(LONGEST)), where)
    except Unreadable as error:
        fix = "Correct or remove it, or change `method.data`."
        raise UserError(f"{where}: {error}. {fix}") from error


# -- what a line holds ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Text:
    text: str


@dataclass(frozen=True)
class _Function:
    name: str
    arguments: str


@dataclass(frozen=True)
class _Call:
    id: str
    function: _Function


@dataclass(frozen=True)
class _Message:
    """One of OpenAI's chat format."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[_Text, ...] | None = None
    tool_calls: tuple[_Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    weight: Literal[0, 1] = 1
    function_call: None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())


@dataclass(frozen=True)
class _Line:
    messages: tuple[_Message, ...]
    tools: tuple[dict[str, Any], ...] | None = None


# -- as conversations -----------------------------------------------------------------------------


def _dialogue(line: _Line, where: str) -> Demonstration:
    called: dict[str, str] = {}  # the tools' names by the ids of their calls
    out: list[Message] = []
    for message in line.messages:
        role = "system" if message.role == "developer" else message.role
        plain: Message = {"role": role, "content": message.text}
        if role == "tool":
            answered = message.tool_call_id or ""
            name = message.name or called.get(answered, "")
            plain |= {"tool_call_id": answered, "name": name}
        if message.tool_calls:
            calls = [call_json(c.id, c.function.name, c.function.arguments)
                     for c in message.tool_calls]  # fmt: skip
            plain["tool_calls"] = calls
            called |= {c.id: c.function.name for c in message.tool_calls}
        out.append(plain)
    for n, tool in enumerate(line.tools or ()):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Unreadable(f"`tools[{n}].function.name` is missing, or no text")
    learned = tuple(bool(m.weight) for m in line.messages if m.role == "assistant")
    return Demonstration(where, tuple(out), line.tools or (), learned)
