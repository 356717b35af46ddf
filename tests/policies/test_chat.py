import pytest
from models import TEMPLATE, byte_tokenizer
from toy import TOOLS

from trace_bench.core.errors import UserError
from trace_bench.policies import chat as chats
from trace_bench.policies.chat import Chat

TIER = "model"  # a tokenizer looks for torch
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
    changes = TEMPLATE.replace("user\n{{ m.content }}", "user\n{{ m.content | trim }}")
    trims = Chat(byte_tokenizer(changes))
    for content in ("  a ", "b"):
        text = trims.tokenizer.decode(trims.following([result(content)], finished=True))
        assert f"<tool_response>\n{content}\n</tool_response>" in text
        news = [{"role": "user", "content": content}]
        text = trims.tokenizer.decode(trims.following(news, finished=True))
        assert f"user\n{content.strip()}<|im_end|>" in text


def test_what_a_chat_keeps_of_messages_is_bounded(chat):
    """A client chooses the ids of its calls, and the names: ids are in no key, and what is long is
    not kept."""
    for key, kept in (("tool_call_id", 1), ("name", 0)):
        before = chat._frames.cache_info().currsize
        for n in range(9):
            long = {"tool_call_id": "id", "name": "f", key: f"{n}" * 4000}
            news = {"role": "tool", "content": "x", **long}
            assert "\nx\n" in chat.tokenizer.decode(chat.following([news], finished=True))
        assert chat._frames.cache_info().currsize - before == kept


def test_an_id_that_a_template_writes_is_that_of_the_message():
    written = "<tool_response>\n{{ m.tool_call_id }}"
    chat = Chat(byte_tokenizer(TEMPLATE.replace("<tool_response>", written)))
    for name in ("call_0", "another"):
        news = [{"role": "tool", "tool_call_id": name, "name": "f", "content": "x"}]
        assert f"{name}\nx\n" in chat.tokenizer.decode(chat.following(news, finished=True))


def test_a_template_with_todays_date_gets_a_constant_one():
    """As Llama 3.2's: a run that goes on tomorrow has the same prompts."""
    dated = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}\n" + TEMPLATE
    text = Chat(byte_tokenizer(dated)).render(START)
    assert text.startswith("26 Jul 2024<|im_start|>")


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
        (changed((CONTENT, "{{ m.content | upper }}\n{%- for call")), "ends no assistant turn"),
        (changed(("<tool_call>", "[CALL]"), ("</tool_call>", "[/CALL]")), "tool calls as"),
        ("{{ raise_exception('no tools here') }}", "refused a conversation.*no tools here"),
    ],
)
def test_templates_that_cannot_be_played(template, message):
    with pytest.raises(UserError, match=message):
        Chat(byte_tokenizer(template), "tiny")


FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "endless",
    [
        FOR_EVER,
        "{{ 9 ** (9 ** 9) }}",  # in one step, already when it is compiled
        "{% if tools %}" + FOR_EVER + "{% endif %}",
        "{% for a in range(99999) %}{{ 'a' * 999999 }}{% endfor %}",
        "{% set much = 'a' * 10 ** 11 %}",
    ],
)
def test_a_template_without_end_is_refused_at_the_start(monkeypatch, endless):
    monkeypatch.setattr(chats, "_START_CPU", 1)
    with pytest.raises(UserError, match=r"template of tiny needs more than 1 s or 2 GiB.*`model`"):
        Chat(byte_tokenizer(TEMPLATE + endless), "tiny")
