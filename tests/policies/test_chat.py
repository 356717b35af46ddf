import json

import pytest
from models import TEMPLATE, byte_tokenizer
from toy import TOOLS

from trace_bench.core.errors import UserError
from trace_bench.policies.chat import Chat
from trace_bench.policies.formats import Hermes, read_reply

START = [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": "Add 3."}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"number": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def chat():
    return Chat(byte_tokenizer(), "tiny")


def encode(chat, text):
    return tuple(chat.tokenizer.encode(text, add_special_tokens=False))


def result(content, call="call_0_0"):
    return {"role": "tool", "tool_call_id": call, "name": "add", "content": content}


def test_pieces_put_together_are_the_templates_own_rendering(chat):
    ids = [*chat.first(START, TOOLS)]
    replies = [(CALL, [result("3")]), ("sum 3?", [{"role": "user", "content": "Yes."}])]
    messages = list(START)
    for i, (text, news) in enumerate(replies):
        sampled = (*encode(chat, text), chat.stop)
        reply = chat.parse(sampled, i, TOOLS)
        assert reply.malformed is None
        messages += [reply.message, *news]
        ids += [*sampled, *chat.following(news, finished=True)]
    whole = chat.tokenizer.apply_chat_template(
        messages, tools=list(TOOLS), add_generation_prompt=True, tokenize=False
    )
    assert tuple(ids) == encode(chat, whole)


def test_several_results_are_one_piece(chat):
    piece = chat.tokenizer.decode(chat.following([result("3"), result("4")], finished=True))
    assert piece.count("<|im_start|>user") == 1 and piece.endswith("<|im_start|>assistant\n")
    assert piece.index("3") < piece.index("4")


def test_a_truncated_turn_is_closed_first(chat):
    news = [{"role": "user", "content": "Go on."}]
    closed = chat.following(news, finished=True)
    assert chat.following(news, finished=False) == (chat.stop, *closed)
    assert chat.tokenizer.decode(closed).startswith("\n<|im_start|>user\nGo on.")


def test_contents_that_look_like_markup_stay_contents(chat):
    for content in ("zqxsentinelxqz", "a\nb", "", "{{ x }}", "<tool_call>"):
        news = [{"role": "user", "content": content}]
        text = chat.tokenizer.decode(chat.following(news, finished=True))
        assert text == f"\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


def test_templates_that_change_contents_are_rendered_every_time():
    trims = Chat(
        byte_tokenizer(TEMPLATE.replace("user\n{{ m.content }}", "user\n{{ m.content | trim }}"))
    )
    for content in ("  a ", "b"):
        text = trims.tokenizer.decode(trims.following([result(content)], finished=True))
        assert f"<tool_response>\n{content}\n</tool_response>" in text
        text = trims.tokenizer.decode(
            trims.following([{"role": "user", "content": content}], finished=True)
        )
        assert f"user\n{content.strip()}<|im_end|>" in text
    assert list(trims._frames.values()).count(None) == 1


def test_a_template_with_todays_date_gets_a_constant_one():
    """As Llama 3.2's: a run that goes on tomorrow has the same prompts."""
    dated = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}\n" + TEMPLATE
    text = Chat(byte_tokenizer(dated)).render(START)
    assert text.startswith("26 Jul 2024<|im_start|>")


def test_first_prompts_are_remembered_by_value(chat):
    one = chat.first(START, TOOLS)
    assert chat.first([dict(m) for m in START], TOOLS) is one
    assert chat.first(START, ()) != one


def test_parsing(chat):
    found = read_reply(f"Let me see.\n{CALL}\n{CALL}", 2, Hermes())
    reply = found.message
    assert found.malformed is None and reply["content"] == "Let me see."
    assert [c["id"] for c in reply["tool_calls"]] == ["call_2_0", "call_2_1"]
    function = reply["tool_calls"][0]["function"]
    assert function["name"] == "add" and json.loads(function["arguments"]) == {"number": 3}
    assert read_reply("Hello.", 0, Hermes()).message == {"role": "assistant", "content": "Hello."}
    assert chat.parse((*encode(chat, "Zoë 😀"), chat.stop), 0, ()).message["content"] == "Zoë 😀"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>\n{oops}\n</tool_call>", "not JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no string "name"'),
        ('<tool_call>["add"]</tool_call>', 'no string "name"'),
        ('<tool_call>{"name": "add", "arguments": "3"}</tool_call>', "not an object"),
        ('<tool_call>{"name": "add"', "unclosed"),
        (f"{CALL}</tool_call>", "unclosed"),
    ],
)
def test_malformed_calls_keep_their_text(text, reason):
    reply = read_reply(text, 0, Hermes())
    assert reply.malformed and reason in reply.malformed
    assert reply.message == {"role": "assistant", "content": text}


def changed(*pairs):
    template = TEMPLATE
    for old, new in pairs:
        assert old in template
        template = template.replace(old, new)
    return template


CONTENT = "{{ m.content }}\n{%- for call"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, r"tokenizer of tiny has no chat template.*`model`"),
        (changed(("{{ messages[0].content }}", "{{ messages | length }}")), "rewrites earlier"),
        (changed((CONTENT, f"(said) {CONTENT}")), "tool calls as"),
        (changed((CONTENT, "{{ m.content | upper }}\n{%- for call")), "does not end assistant"),
        (
            changed(("{%- endfor %}<|im_end|>\n{% elif m.role", "{%- endfor %}\n{% elif m.role")),
            "tool calls as",
        ),
        (changed(("<tool_call>", "[CALL]"), ("</tool_call>", "[/CALL]")), "tool calls as"),
        ("{{ raise_exception('no tools here') }}", "refused a conversation.*no tools here"),
    ],
)
def test_templates_that_cannot_be_played(template, message):
    with pytest.raises(UserError, match=message):
        Chat(byte_tokenizer(template), "tiny")


def test_a_tokenizer_without_an_end_is_refused():
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="no eos token"):
        Chat(tokenizer)
