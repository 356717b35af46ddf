"""Roles over a real HTTP server: answers that can be used, kept answers, costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trace_bench.checklists.model_judge import entries_in
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.roles import RoleSettings
from trace_bench.core.text import json_in
from trace_bench.core.types import Message
from trace_bench.envs.recorded.tools import read_result
from trace_bench.llm.client import Endpoint, LLMError
from trace_bench.llm.roles import Role, Roles, Unusable, read_block, read_json
from trace_bench.rehearse.scripted import Answer, Server, chat, serve
from trace_bench.runner import build

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
ASK: list[Message] = [{"role": "user", "content": "How many?"}]


def roles(
    server: Server, path: Path, name: str = "analyst", tries: int = 3, log: Any = print, **more: Any
) -> closing[Roles]:
    sizes = {"max_tokens": 50, "context": 4000, "tries": tries, **more}
    how = RoleSettings(model="big", temperature=0.5, seed=1, **sizes)
    role = Role(Endpoint((server.url,), retries=1, pause=0.01), how, log)
    return closing(Roles({name: role}, path))


def replies(*texts: str | Answer) -> Any:
    left = list(texts)

    def script(path: str, body: dict[str, Any]) -> Answer:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return chat(answer) if isinstance(answer, str) else answer

    return serve(script)


ANSWER = '{"n": 3, "execution_result": 3, "verdicts": [{"item": 1, "seen": 3}]}'


def entries_of(text: str) -> Any:
    return entries_in(text, "item", 1)


def read(text: str) -> int:
    return int(read_json(text, SCHEMA)["n"])


def test_an_episode_may_ask_the_judge_and_a_failure_is_the_judges(tmp_path: Path) -> None:
    script = replies("It holds.", Answer({"error": "no"}, status=400))
    with script as server, roles(server, tmp_path / "llm.jsonl", "judge") as asked:
        assert asked.ask("judge", ASK) == "It holds."
        with pytest.raises(EpisodeError, match="the judge: ") as caught:
            asked.ask("judge", ASK)
        assert caught.value.boundary == "judge"
        with pytest.raises(EpisodeError, match="no model plays the role 'analyst'"):
            asked.ask("analyst", ASK)
        assert asked.usage()["judge"]["failures"] == 1


def test_a_model_learns_what_was_wrong(tmp_path: Path) -> None:
    bad = ["I cannot help with that.", '{"n": "three"}', 'Well: ```json\n{"n": 3}\n```']
    with replies(*bad) as server, roles(server, tmp_path / "llm.jsonl") as asked:
        assert asked.usable("analyst", "count", ASK, read) == 3
    _, second, third = server.bodies()
    assert second["messages"][1] == {"role": "assistant", "content": bad[0]}
    assert "no JSON object" in second["messages"][2]["content"]
    assert "'three' is not of type 'integer'" in third["messages"][-1]["content"]
    assert len({body["seed"] for body in server.bodies()}) == 3, "the same draw again"
    assert asked.usage()["analyst"]["requests"] == 3


class Choosy:
    """A server that answers 400 to some requests with a schema."""

    def __init__(self, refuses: Callable[[dict[str, Any]], bool], text: str = '{"n": 3}') -> None:
        self.refuses, self.text = refuses, text

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        refused = Answer({"error": {"message": "response_format is not known here"}}, 400)
        return refused if self.refuses(body) else chat(self.text)


def test_a_question_says_which_schema_its_answer_has(tmp_path: Path) -> None:
    with serve(Choosy(lambda body: False)) as server:
        with roles(server, tmp_path / "llm.jsonl") as asked:
            assert asked.usable("analyst", "count", ASK, read, SCHEMA) == 3
            assert asked.usable("analyst", "words", ASK, len) == 8
        with roles(server, tmp_path / "never.jsonl", schema="never") as never:
            assert never.usable("analyst", "count", ASK, read, SCHEMA) == 3
    shaped, *others = server.bodies()
    named = {"name": "answer", "strict": True, "schema": {**SCHEMA, "additionalProperties": False}}
    assert shaped["response_format"] == {"type": "json_schema", "json_schema": named}
    assert not any("response_format" in body for body in others)


def test_a_server_that_refuses_schemas_is_asked_without_and_says_so_once(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    with serve(Choosy(lambda body: "response_format" in body)) as server:
        with roles(server, tmp_path / "llm.jsonl", log=said.append) as asked:
            for name in ("a", "b"):
                assert asked.usable("analyst", name, ASK, read, SCHEMA) == 3
            assert asked.usage()["analyst"]["requests"] == 2, "the refused one has no answer"
        refused = pytest.raises(LLMError, match="response_format is not known here")
        strict = roles(server, tmp_path / "strict.jsonl", schema="always", log=said.append)
        with strict as asked, refused:
            asked.usable("analyst", "a", ASK, read, SCHEMA)
    assert ["response_format" in body for body in server.bodies()] == [True, False, False, True]
    (line,) = said
    assert line.startswith("big is asked without the schema") and "not known here" in line


def test_the_field_is_set_in_one_place(tmp_path: Path) -> None:
    extra = {"response_format": {"type": "json_object"}}
    with serve(Choosy(lambda body: False)) as server:
        how = RoleSettings(by="endpoint", base_url=(server.url,), model="big", extra=extra)
        with pytest.raises(UserError, match=r"llm\.judge\.schema=auto sets .*schema=never"):
            build.make_role("judge", how, print)
        role = build.make_role("judge", replace(how, schema="never"), print)
        role.ask(ASK, schema=SCHEMA)
        role.client.close()
    assert server.bodies()[0]["response_format"] == {"type": "json_object"}


def test_a_long_answer_is_not_sent_back_whole(tmp_path: Path) -> None:
    """However often it is asked again, the question stays within what fits."""
    long = Answer(chat("{" + "x" * 50_000, finish="length").body)
    with replies(long, long, '{"n": 3}') as server, roles(server, tmp_path / "llm.jsonl") as asked:
        player = asked.role("analyst")
        assert player is not None
        question: list[Message] = [{"role": "user", "content": "?" * player.characters}]
        assert asked.usable("analyst", "count", question, read) == 3
    for body in server.bodies():
        assert sum(len(m["content"]) for m in body["messages"]) <= 3 * (4000 - 50)
    assert "cut off" in server.bodies()[2]["messages"][-1]["content"]


def test_a_failure_that_the_run_went_on_without_stays_one(tmp_path: Path) -> None:
    """What was done after it would not fit an answer that comes later; retracted, it is asked."""
    with replies(Answer({"error": "too long"}, 400), '{"n": 4}') as server:
        for _ in range(2):
            refused = pytest.raises(LLMError, match="too long")
            with roles(server, tmp_path / "llm.jsonl") as asked, refused as caught:
                asked.usable("analyst", "a", ASK, read)
            assert caught.value.status == 400 and not caught.value.outage
        assert len(server.requests) == 1
        with roles(server, tmp_path / "llm.jsonl") as asked:
            asked.retract("analyst", "a/")
            assert asked.usable("analyst", "a", ASK, read) == 4


def test_a_question_that_nobody_answered_is_asked_again_by_the_same_command(tmp_path: Path) -> None:
    with replies(Answer({"error": "unknown key"}, 401), '{"n": 4}') as server:
        lost = pytest.raises(UserError, match=r"the analyst does not answer: .*goes on from here")
        with roles(server, tmp_path / "llm.jsonl") as asked, lost:
            asked.usable("analyst", "a", ASK, read)
        with roles(server, tmp_path / "llm.jsonl") as asked:
            assert asked.usable("analyst", "a", ASK, read) == 4


def test_answers_are_kept_for_the_next_time(tmp_path: Path) -> None:
    with replies('{"n": 1}', '{"n": 2}', '{"n": 3}') as server:
        for _ in range(2):
            with roles(server, tmp_path / "llm.jsonl") as asked:
                assert asked.usable("analyst", "a", ASK, read) == 1
                assert asked.usage()["analyst"]["completion_tokens"] == 2
        assert len(server.requests) == 1
        with roles(server, tmp_path / "llm.jsonl") as asked:
            other = [{"role": "user", "content": "And now?"}]
            assert asked.usable("analyst", "a", other, read) == 2, "another question of that name"
            asked.retract("analyst", "a")
            assert asked.usable("analyst", "a", ASK, read) == 3, "retracted"
    with roles(server, tmp_path / "llm.jsonl") as asked:
        assert asked.usable("analyst", "a", ASK, read) == 3, "and so it stays"


@pytest.mark.parametrize("role", ["user", "judge"])
def test_what_an_episode_holds_is_not_kept_but_counted(role: str, tmp_path: Path) -> None:
    with replies("Hello.") as server, roles(server, tmp_path / "llm.jsonl", role) as asked:
        assert asked.ask(role, ASK) == asked.ask(role, ASK) == "Hello."
        assert len(server.requests) == 2
    lines = [json.loads(line) for line in (tmp_path / "llm.jsonl").read_text().splitlines()]
    assert lines == [{"role": role, "prompt_tokens": 10, "completion_tokens": 2}] * 2


DEEP = '{"n": ' + "[" * 100_000 + "]" * 100_000 + "}"
NO_NUMBER = (DEEP, '{"n": 1.5}', "[]", '{"m": 1}', '"n"', "{}")
NO_JSON = ("", "no braces", "{", '{"n": 1', "```\n```")


@pytest.mark.parametrize("text", [*NO_NUMBER, *NO_JSON])
def test_useless_texts_say_why(text: str) -> None:
    with pytest.raises(Unusable, match=r"\w"):
        read_json(text, SCHEMA)


NESTED = "Be brief. Write it like this:\n```python\nx = 1\n```\nThen stop.\n"
BARE = NESTED.replace("```python", "```")


BLOCKS = [
    ("So:\n```python\nlonger = 1\n```\nThat is all.", "longer = 1\n"),
    (f"```\n{NESTED}```", NESTED),
    (f"````\n{BARE}````", BARE),
    (f"~~~ text\r\n{BARE}~~~", BARE),
    (f"It is ````md\n{NESTED}`````\n", NESTED),
    (f"```\n{BARE}```", None),  # where it ends cannot be told
    ("```\nan old one\n```\nNew:\n```python\nx = 1", None),
    ("```\nan old one\n```\nNew:\n```\nx = 1\n```", None),
    ("```python\nx = 1", None),
    ("There is `none` ``` here.", None),
]
JSON = [
    ('So: {"n": 1}.', '{"n": 1}'),
    ('{"n": "```\\n}"} is it', '{"n": "```\\n}"}'),
    ('```json\n{"n": 1}\n```\nwhich is {short}', '{"n": 1}\n'),
    ('{"n": 1} in words:\n~~~json\n{"n": 2}\n~~~', '{"n": 2}\n'),
    ('````\n```json\n{"n": 1}\n```\n````', '```json\n{"n": 1}\n```\n'),
    ('```json\n{"n": 1}', '{"n": 1}'),  # all that there is, and whole
    ('```json\n{"n": 1}\n```\nNo:\n~~~json\n{"n": 2}', None),
    ("```\n```", None),
    ("} none {", None),
    ("", None),
]
READ = [*((read_block, *case) for case in BLOCKS), *((json_in, *case) for case in JSON)]


@pytest.mark.parametrize(("reads", "text", "found"), READ)
def test_what_is_asked_for_is_read_whole_or_not_at_all(
    reads: Callable[[str], str], text: str, found: str | None
) -> None:
    """And then it is asked for again."""
    if found is not None:
        assert reads(text) == found
        return
    error, why = (Unusable, "block") if reads is read_block else (ValueError, "no end|no JSON obj")
    with pytest.raises(error, match=why):
        reads(text)


@pytest.mark.parametrize("reads", [lambda t: read_json(t, SCHEMA), entries_of, read_result])
def test_the_last_block_is_the_answer(reads: Callable[[str], Any]) -> None:
    draft = ANSWER.replace("3", "2")
    said = f"First ```json\n{draft}\n```\nor ```json\n{ANSWER}\n```\nwith {{}}."
    assert reads(said) == reads(ANSWER) != reads(draft)
    with pytest.raises((Unusable, ValueError), match="no end"):
        reads(f"```json\n{draft}\n```\nor ```json\n{ANSWER}")


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<think>A draft:\n```\ndraft\n```\n<tool_call>{}</tool_call></think>\nSaid."},
        {"content": "A draft:\n```\ndraft\n```\n</think>\n\nSaid."},  # it began in the prompt
        {"content": "Said.", "reasoning_content": "A draft."},
        {"content": "Said.<think>A draft that is cut", "reasoning": "Hm."},
    ],
)
@pytest.mark.parametrize("role", ["user", "judge", "simulator"])
def test_thoughts_are_no_part_of_an_answer(role: str, message: Any, tmp_path: Path) -> None:
    path, said = tmp_path / "llm.jsonl", chat({"role": "assistant", **message})
    with replies(said) as server, roles(server, path, role) as asked:
        assert asked.ask(role, ASK) == "Said."
        assert asked.usable(role, "named", ASK, str.strip) == "Said."
    assert "A draft" in path.read_text(), "for a reader of the file"


def test_an_answer_that_is_cut_is_asked_for_again(tmp_path: Path) -> None:
    old = Answer(chat("I quote:\n```\nan old one\n```\nand now", finish="length").body)
    with replies(old, "```\nnew\n```") as server, roles(server, tmp_path / "llm.jsonl") as asked:
        assert asked.usable("analyst", "prompt", ASK, read_block) == "new\n"
