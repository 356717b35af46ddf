"""Chat messages to tokens and back, for any Hugging Face tokenizer with a chat template.

A conversation is never tokenized twice. The first prompt is the template's rendering of the first
messages; each later piece is what the template adds for new messages after a finished assistant
turn. Sampled ids are kept exactly. A check, once per tokenizer, verifies that the template itself
would render the same concatenation.

Tool calls are parsed in the Hermes format that Qwen3 uses:

    <tool_call>
    {"name": "...", "arguments": {...}}
    </tool_call>
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.text import between, without_surrogates
from trace_bench.core.types import Message, Tool

CALL = Limits(2**20)  # of the text of one tool call
_CALL_TAG = "<tool_call>"
_SENTINEL = "zqxsentinelxqz"
_LONG = 20_000  # characters; a text with more is encoded so that other threads go on meanwhile
_REMEMBERED = 1_000_000  # tokens of cached first prompts, which the rollouts of a task share


class Chat:
    """A model's chat format.

    `stop` is the id that ends an assistant turn. Raises UserError for a tokenizer without a chat
    template, or with one whose prompts cannot grow by appending.
    """

    def __init__(self, tokenizer: Any, name: str = "the model") -> None:
        self.name = name
        self._tokenizer = tokenizer
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
        self._prompts: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self._remembered = 0  # tokens in the cache
        self._lock = threading.Lock()  # of the cache: servers read prompts in several threads
        self._frames: dict[str, tuple[str, str] | None] = {}
        self._check()

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """The ids of an episode's first prompt, up to the start of the assistant turn."""
        key = hashlib.sha256(json.dumps([list(messages), list(tools)]).encode()).digest()
        with self._lock:
            if key in self._prompts:
                self._prompts.move_to_end(key)
                return self._prompts[key]
        ids = self._encode(self._render(messages, tools))
        with self._lock:
            self._remembered += len(ids) - len(self._prompts.get(key, ()))
            self._prompts[key] = ids
            while self._remembered > _REMEMBERED and len(self._prompts) > 1:
                self._remembered -= len(self._prompts.popitem(last=False)[1])
        return ids

    @functools.cached_property
    def longest(self) -> int:
        """The most characters that one token can stand for."""
        return max(map(len, self._tokenizer.get_vocab()))

    def piece(self, token: int) -> str:
        """The text of one token; U+FFFD for what is no character by itself."""
        return str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def check_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Raises UserError if the template leaves the tools out of the prompt."""
        if self._render(messages, tools) == self._render(messages):
            raise UserError(
                f"the chat template of {self.name} leaves tools out of the prompt, so the agent "
                "would never see them. Add them to `chat_template` in its tokenizer_config.json, "
                "or change the setting `model`."
            )

    def following(self, messages: Sequence[Message], finished: bool) -> tuple[int, ...]:
        """The ids that `messages` add after an assistant turn, up to the start of the next one.

        `finished`: the turn's last sampled id was `stop`; otherwise `stop` is prepended."""
        ids = self._encode(self._increment(messages))
        return ids if finished else (self.stop, *ids)

    def token(self, text: str) -> int:
        """The id of a text that is one token. Raises UserError if it is several."""
        ids = self._encode(text)
        if len(ids) != 1:
            raise UserError(
                f"{text!r} is {len(ids)} tokens to {self.name}; a routing label must be one. "
                "Change the setting `model`, or `method.route` to retrieval."
            )
        return ids[0]

    def turn(
        self, before: Sequence[Message], tools: Sequence[Tool], message: Message
    ) -> tuple[int, ...]:
        """The ids of an assistant turn that this policy did not sample, including `stop`."""
        start = self._render(before, tools)
        whole = self._render([*before, message], tools, prompt=False)
        text, found, _ = whole[len(start) :].partition(self._stop_text)
        if not whole.startswith(start) or not found:
            raise UserError(
                f"the chat template of {self.name} writes this assistant turn in another way than "
                f"by appending: {message}. Change the setting `model`."
            )
        return self._encode(text + self._stop_text)

    def parse(self, ids: Sequence[int], turn: int) -> tuple[Message, str | None]:
        """Decodes sampled `ids`: the assistant message, and why a tool call in it could not be
        parsed (None: no error). A malformed reply keeps its whole text as content."""
        return parse_text(self._text(ids), turn)

    def partial(self, ids: Sequence[int]) -> str:
        """The text before the first tool call in sampled `ids` that are not all there yet, without
        what later ids may still change: a tag or a character that has only begun."""
        text = self._text(ids).partition(_CALL_TAG)[0].strip().rstrip("\ufffd")
        begun = next(n for n in range(len(_CALL_TAG), -1, -1) if text.endswith(_CALL_TAG[:n]))
        return text[: len(text) - begun].rstrip()

    def _text(self, ids: Sequence[int]) -> str:
        ids = ids[:-1] if ids and ids[-1] == self.stop else ids
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _encode(self, text: str) -> tuple[int, ...]:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None and len(text) > _LONG:
            return tuple(backend.encode_batch([text], add_special_tokens=False)[0].ids)
        if backend is not None:
            return tuple(backend.encode(text, add_special_tokens=False).ids)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), prompt: bool = True
    ) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except Exception as error:  # templates may raise any exception
            raise UserError(
                f"the chat template of {self.name} refused a conversation with roles "
                f"{[m['role'] for m in messages]}: {error}. Change the setting `model`."
            ) from error

    def _increment(self, messages: Sequence[Message]) -> str:
        """The text that the template appends for new messages. Usually that is one message, whose
        content is between two constant texts: those are cached."""
        if len(messages) != 1:
            return self._rendered_increment(messages)
        message = messages[0]
        key = json.dumps({**message, "content": None}, sort_keys=True)
        if key not in self._frames:
            self._frames[key] = self._frame(message)
        frame = self._frames[key]
        if frame is None:
            return self._rendered_increment(messages)
        return f"{frame[0]}{message['content']}{frame[1]}"

    def _frame(self, message: Message) -> tuple[str, str] | None:
        """The template's text (before, after) the content of a message like this one; None if the
        template changes contents."""
        before, found, after = self._rendered_increment(
            [{**message, "content": _SENTINEL}]
        ).partition(_SENTINEL)
        odd = " \n<tool_call> {'a': \"ü\"} </think>\n\n"
        same = self._rendered_increment([{**message, "content": odd}]) == f"{before}{odd}{after}"
        return (before, after) if found and same else None

    def _rendered_increment(self, messages: Sequence[Message]) -> str:
        """The messages, rendered after a fixed short conversation and cut off after the end of that
        conversation's assistant turn."""
        text = self._render([*_opening(messages), *messages])
        _, found, rest = text.partition(_SENTINEL)
        _, ended, rest = rest.partition(self._stop_text)
        if not found or not ended:
            raise UserError(
                f"the chat template of {self.name} does not end assistant turns with the eos "
                f"token {self._stop_text!r}. Change the setting `model`."
            )
        return rest

    def _check(self) -> None:
        """Raises UserError unless prompts grow by appending and tool calls can be parsed."""
        call = {"name": "probe", "arguments": {"text": "a b"}}
        message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "type": "function", "function": call}],
        }
        talk: list[Message] = [
            {"role": "system", "content": "S."},
            {"role": "user", "content": "One?"},
            message,
            {"role": "tool", "tool_call_id": "call_0", "name": "probe", "content": "1"},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "Three."},
        ]
        for end in (2, 4):
            before, after = self._render(talk[:end]), self._render(talk[: end + 2])
            tail = self._stop_text + self._increment(talk[end + 1 : end + 2])
            if not (after.startswith(before) and after.endswith(tail)):
                raise UserError(
                    f"the chat template of {self.name} rewrites earlier turns, so prompts cannot "
                    f"grow by appending: {before[-40:]!r} became {after[: len(before) + 20]!r}. "
                    "Use a template that keeps them; change the setting `model`."
                )
            body = after[len(before) : len(after) - len(tail)]
            if end == 2:
                self._check_call(body)
            elif body != "Two.":
                raise UserError(
                    f"the chat template of {self.name} writes the assistant turn 'Two.' as "
                    f"{body[:80]!r}; needed: the text as it is, ended by the eos token "
                    f"{self._stop_text!r}. Change the setting `model`."
                )

    def _check_call(self, text: str) -> None:
        reply, malformed = parse_text(text, 0)
        if malformed or reply["content"] or "tool_calls" not in reply:
            raise UserError(
                f"the chat template of {self.name} writes tool calls as {text[:80]!r}; needed: "
                '<tool_call>{"name": ..., "arguments": {...}}</tool_call>. Change the setting '
                "`model`."
            )


def parse_text(text: str, turn: int) -> tuple[Message, str | None]:
    """An assistant message from text with Hermes tool calls; see `Chat.parse`."""
    blocks, content = between(text, "<tool_call>", "</tool_call>")
    calls = []
    for i, block in enumerate(blocks):
        call, reason = _parse_call(block, f"call_{turn}_{i}")
        if call is None:
            return {"role": "assistant", "content": text}, reason
        calls.append(call)
    if "<tool_call>" in content or "</tool_call>" in content:
        return {"role": "assistant", "content": text}, "an unclosed <tool_call> block"
    message: Message = {"role": "assistant", "content": content.strip()}
    if calls:
        message["tool_calls"] = calls
    return message, None


def _parse_call(block: str, call_id: str) -> tuple[dict[str, Any] | None, str]:
    try:
        data = without_surrogates(read(block, CALL))
    except Unreadable as error:
        return None, f"not JSON: {error}"
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return None, 'no string "name"'
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        return None, '"arguments" is not an object'
    function = {"name": data["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}, ""


def _opening(messages: Sequence[Message]) -> list[Message]:
    """A short conversation that `messages` may follow: a turn with as many calls as results."""
    results = [m for m in messages if m["role"] == "tool"]
    turn: Message = {"role": "assistant", "content": _SENTINEL}
    if results:
        turn["tool_calls"] = [
            {
                "id": m.get("tool_call_id") or "call_0",
                "type": "function",
                "function": {"name": m.get("name") or "f", "arguments": {}},
            }
            for m in results
        ]
    return [{"role": "user", "content": "u"}, turn]
