"""Chat messages to tokens and back, for any Hugging Face tokenizer with a chat template.

The first prompt is the template's rendering of the first messages; each later piece is what the
template adds for new messages after a finished assistant turn. Sampled ids are kept exactly. A
check, once per tokenizer, verifies that the template itself would render the same concatenation,
but for the thoughts of earlier turns, which many drop (`drops`, and `policies.talk`), and finds
the format of tool calls that it writes.
"""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from trace_bench.core.chat import call_json, make_call, make_tool, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.store import process
from trace_bench.core.text import THINK, THOUGHT, apart
from trace_bench.core.types import Message, Tool
from trace_bench.policies.formats import CALL_BEGIN, FORMATS, Format, Reply, cut, read_reply

_SENTINEL, _LAST = "zqxsentinelxqz", "zqxlastxqz"
_PROBE: Tool = make_tool("probe", "A probe.", text="string", count="integer", on="boolean")
_ARGUMENTS = {"text": 'a "b"', "count": 2, "on": True}
_TALK: tuple[Message, ...] = (
    {"role": "system", "content": "S."},
    {"role": "user", "content": "One?"},
    make_call("probe", text="a b"),
    {"role": "tool", "tool_call_id": "call_0", "name": "probe", "content": "1"},
    text_message("Two."),
    {"role": "user", "content": "Three."},
)
_NO_THOUGHT = re.compile(f"{THINK}\\s*({THOUGHT}\\s*)?$")
DATE = "26 Jul 2024"
"""What templates that would write today's date are given (Llama's default): a run that goes on
tomorrow has the same prompts."""
_SHAPES, _LONGEST_SHAPE = 256, 2000  # messages but for their contents; characters of one
_START_CPU, _START_BYTES = 5, 2**31  # seconds and memory for all that is tried at the start
_PROMPTS, _LONGEST = 1024, 100_000  # first prompts that rollouts share; characters of one


class Chat:
    """A model's chat format.

    `stop` is the id that ends an assistant turn; `calls` how the model writes tool calls; `opened`
    whether the prompt ends inside a thought; `drops` whether the template leaves out earlier turns'
    thoughts, or the mark that there are none.
    `thinking`: whether it is to think (None: as the template does by itself). Raises UserError for
    a tokenizer without a chat template, or with one whose prompts cannot grow by appending, whose
    calls are in no known format, or that takes no `thinking`."""

    def __init__(
        self, tokenizer: Any, name: str = "the model", thinking: bool | None = None
    ) -> None:
        self.name = name
        self._options = {} if thinking is None else {"enable_thinking": thinking}
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"the tokenizer of {name} has no chat template; needed: one with tool calls. Add "
                "`chat_template` to its tokenizer_config.json, or change the setting `model`."
            )
        if tokenizer.eos_token_id is None:
            raise UserError(
                f"the tokenizer of {name} has no eos token. Change the setting `model`."
            )
        self.stop: int = tokenizer.eos_token_id
        self._stop_text: str = tokenizer.eos_token
        self._prompts = functools.lru_cache(_PROMPTS)(self._prompt)
        self._frames = functools.lru_cache(_SHAPES)(self._frame)
        self._try()
        self._read()

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """The ids of an episode's first prompt, up to the start of the assistant turn."""
        said = json.dumps([messages, tools])
        return self._prompts(said) if len(said) <= _LONGEST else self._prompt(said)

    def _prompt(self, said: str) -> tuple[int, ...]:
        return self.encode(self.render(*json.loads(said)))

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """How many tokens an episode's first prompt has. Raises UserError if the template leaves
        the tools out of it."""
        if tools and self.render(messages, tools) == self.render(messages):
            raise UserError(
                f"the chat template of {self.name} leaves tools out of the prompt, so the agent "
                "would never see them. Add them to `chat_template` in its tokenizer_config.json, "
                "or change the setting `model`."
            )
        return len(self.first(messages, tools))

    def following(self, messages: Sequence[Message], finished: bool) -> tuple[int, ...]:
        """The ids that `messages` add after an assistant turn, up to the start of the next one.
        `finished`: the turn's last sampled id was `stop`, which is otherwise prepended."""
        ids = self.encode(self._increment(messages))
        return ids if finished else (self.stop, *ids)

    def carries(self, before: str, after: str, thoughts: str) -> bool:
        """Whether the rendering `after` goes on from the rendering `before`, after which the agent
        had these thoughts."""
        said = after[len(before) :].lstrip().removeprefix(THINK).lstrip()
        return after.startswith(before) and said.startswith(thoughts.strip())

    def token(self, text: str) -> int:
        """The id of a text that is one token. Raises UserError if it is several."""
        ids = self.encode(text)
        if len(ids) != 1:
            raise UserError(
                f"{text!r} is {len(ids)} tokens to {self.name}; a routing label must be one. "
                "Change the setting `model`, or `method.route` to turn."
            )
        return ids[0]

    def turn(
        self, before: Sequence[Message], tools: Sequence[Tool], message: Message
    ) -> tuple[int, ...]:
        """The ids of an assistant turn that this policy did not sample, including `stop`."""
        start = self.render(before, tools)
        whole = self.render([*before, message], tools, prompt=False)
        text, stop, _ = whole[len(start) :].partition(self._stop_text)
        if not whole.startswith(start) or not stop:
            raise self._unfit(f"writes an assistant turn otherwise than by appending: {message}")
        return self.encode(text + self._stop_text)

    def parse(self, ids: Sequence[int], turn: int, tools: Sequence[Tool]) -> Reply:
        """Decodes sampled `ids`. `tools`: whose arguments' types count where a format has none."""
        return read_reply(self.text(ids), turn, self.calls, tools, self.opened)

    def partial(self, ids: Sequence[int]) -> str:
        """The text before the first tool call in sampled `ids` that are not all there yet, without
        thoughts and what later ids may still change: a tag or a character that has only begun."""
        said = cut(apart(self.text(ids), CALL_BEGIN, self.opened)[1], CALL_BEGIN)
        return cut(said.strip().rstrip("\ufffd"), THINK).rstrip()

    def text(self, ids: Sequence[int]) -> str:
        """What the ids stand for, without a `stop` at the end."""
        ids = ids[:-1] if ids and ids[-1] == self.stop else ids
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text that the template has written."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            return tuple(backend.encode(text, add_special_tokens=False).ids)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), prompt: bool = True
    ) -> str:
        """The conversation as the template writes it, with `prompt` up to the start of the next
        turn; the agent's turns as `Reply.remembered`."""
        try:
            return self.tokenizer.apply_chat_template(
                [self.calls.prepared(message) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=prompt,
                tokenize=False,
                date_string=DATE,
                **self._options,
            )
        except MemoryError:
            raise
        except Exception as error:  # templates may raise any exception
            roles = [m["role"] for m in messages[:20]]
            raise self._unfit(f"refused a conversation with roles {roles}: {error}") from error

    def _increment(self, messages: Sequence[Message]) -> str:
        """The text that the template appends for new messages. Usually that is one message, whose
        content is between two constant texts: those are cached."""
        if len(messages) == 1:
            shape = {**messages[0], "content": ""}
            if shape.get("tool_call_id"):
                shape["tool_call_id"] = "call_0"
            said = json.dumps(shape, sort_keys=True)
            frames = self._frames if len(said) <= _LONGEST_SHAPE else self._frame
            if (frame := frames(said)) is not None:
                return f"{frame[0]}{messages[0]['content']}{frame[1]}"
        return self._rendered_increment(messages)

    def _frame(self, shape: str) -> tuple[str, str] | None:
        """The template's text (before, after) the content of such a message, whatever the id of its
        call; None if it changes contents, or writes the id."""
        one = {**json.loads(shape), "content": _SENTINEL}
        other = {**one, "content": " \n<tool_call> {'a': \"ü\"} </think>\n\n"}
        if one.get("tool_call_id"):
            other["tool_call_id"] = "call_1"
        before, mark, after = self._rendered_increment([one]).partition(_SENTINEL)
        same = self._rendered_increment([other]) == f"{before}{other['content']}{after}"
        return (before, after) if mark and same else None

    def _rendered_increment(self, messages: Sequence[Message]) -> str:
        """The messages, rendered after a fixed short conversation and cut off after the end of that
        conversation's assistant turn."""
        opening = _opening(messages)
        text = self.render([*opening, *messages])
        mark = _LAST if opening[-1].get("tool_calls") else _SENTINEL
        _, found, rest = text.partition(mark)
        _, ended, rest = rest.partition(self._stop_text)
        if not found or not ended:
            raise self._unfit(f"ends no assistant turn with the eos token {self._stop_text!r}")
        return rest

    def _unfit(self, why: str, fix: str = "Change the setting `model`.") -> UserError:
        return UserError(f"the chat template of {self.name} {why}. {fix}")

    def _begun(self) -> str:
        """How the prompt begins the assistant's turn, without white space at the end."""
        return self.render(_TALK[:2]).removeprefix(self.render(_TALK[:2], prompt=False)).rstrip()

    def _try(self) -> None:
        """Raises UserError for a template without end. A process of its own reads it first, as
        nothing else ends or bounds what a template computes in one step."""
        if child := os.fork():
            if os.waitpid(child, 0)[1]:
                bounds = f"{_START_CPU} s or {_START_BYTES >> 30} GiB"
                raise self._unfit(f"needs more than {bounds} for a short conversation")
            return
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # should it wait for what a thread held that it does not have
            there = sum(map(int, process(os.getpid())[20:21]))  # bytes of addresses
            limits = {"CORE": 0, "CPU": _START_CPU, "AS": there + _START_BYTES}
            for name, most in limits.items():
                with suppress(ValueError):  # a lower one holds already
                    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
            self._read()
            status = 0
        except Exception as error:  # what is not of a limit is raised again, where it is heard
            status = int(isinstance(error, MemoryError))
        finally:
            os._exit(status)

    def _read(self) -> None:
        """What the template says of itself. Raises UserError for one that cannot be played."""
        self.calls = self._format()
        self.opened = self._begun().endswith(THINK)
        self._check()
        self.drops = THOUGHT in str(self.tokenizer.chat_template) and self._drops()

    def _format(self) -> Format:
        """The format in which the template writes a call. Raises UserError for one of no format."""
        message = {**_TALK[2], "tool_calls": [call_json("call_0_0", "probe", _ARGUMENTS)]}
        seen, self.calls = "", FORMATS[0]
        before = _NO_THOUGHT.sub("", self.render(_TALK[:2], [_PROBE]))
        for known in FORMATS:
            self.calls = known
            try:
                seen = self.render([*_TALK[:2], message], [_PROBE], prompt=False)
            except UserError:  # a template may refuse what is prepared for another format
                continue
            differs = [a != b for a, b in zip(before, seen, strict=False)]
            start = differs.index(True) if True in differs else len(differs)
            seen = seen[start:]
            _, begun, call = seen.partition(CALL_BEGIN)
            text = (begun + call).partition(self._stop_text)[0]
            read = read_reply(text, 0, known, [_PROBE]).message
            if read.get("tool_calls") == message["tool_calls"]:
                return known
        names = ", ".join(dict.fromkeys(f.name for f in FORMATS))
        raise self._unfit(
            f"writes tool calls as {seen[-160:]!r}, which is none of the known formats: {names}"
        )

    def _drops(self) -> bool:
        """As `drops`, of a template that knows of thoughts."""
        for end in (2, 4):
            turn = Reply(_TALK[end], "Hm.").remembered
            before = self.render(_TALK[:end])
            after = self.render([*_TALK[:end], turn, _TALK[end + 1]])
            if not self.carries(before, after, "Hm."):
                return True
        return False

    def _check(self) -> None:
        """Raises UserError unless prompts grow by appending, and `thinking` changes something."""
        for end, what in ((2, "tool calls"), (4, "the assistant turn 'Two.'")):
            before, after = self.render(_TALK[:end]), self.render(_TALK[: end + 2])
            before = _NO_THOUGHT.sub("", before)  # of the turn to come; histories have none
            tail = self._stop_text + self._increment(_TALK[end + 1 : end + 2])
            if not (after.startswith(before) and after.endswith(tail)):
                became = f"{before[-40:]!r} became {after[: len(before) + 20]!r}"
                raise self._unfit(
                    f"rewrites earlier turns, so prompts cannot grow by appending: {became}",
                    "Use a template that keeps them; change the setting `model`.",
                )
            body = after[len(before) : len(after) - len(tail)]
            reply = read_reply(body, 0, self.calls).message
            if reply["content"] != _TALK[end]["content"] or ("tool_calls" in reply) != (end == 2):
                needed = f"the text as it is, ended by the eos token {self._stop_text!r}"
                raise self._unfit(f"writes {what} as {body[:80]!r}; needed: {needed}")
        options = self._options
        if options:
            self._options = {"enable_thinking": not options["enable_thinking"]}
            other = self._begun()
            self._options = options
            if other == self._begun():
                set_by = f"policy.thinking={options['enable_thinking']} sets"
                why = f"has no `enable_thinking`, which {set_by}"
                raise self._unfit(why, "Set `policy.thinking` to null.")


def _opening(messages: Sequence[Message]) -> list[Message]:
    """A short conversation that `messages` may follow: a turn with a call where they are results.
    One call, as some templates allow no more."""
    calls = [
        call_json(m.get("tool_call_id") or "call_0", m.get("name") or "f", {"text": _LAST})
        for m in messages
        if m["role"] == "tool"
    ]
    return [{"role": "user", "content": "u"}, text_message(_SENTINEL, calls[-1:])]
