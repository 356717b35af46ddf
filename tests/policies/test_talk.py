"""A conversation as tokens, where the template leaves out earlier thoughts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from models import byte_tokenizer
from playing import play
from test_chat import CALL, START
from thinking import DROPS, KEEPS, OPENED, AskingSuite, save_thinker, tokenizer
from toy import TOOLS

from trace_bench.core.types import AgentSpec, Message, Trajectory
from trace_bench.policies.chat import Chat
from trace_bench.policies.engine.scheduler import Order, Scheduler
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.talk import Talk, Thoughts

RESULT: Message = {"role": "tool", "tool_call_id": "call_0_0", "name": "add", "content": "3"}
SAID: tuple[tuple[str, Message], ...] = (
    (f"<think>\nThree.\n</think>\n\n{CALL}", RESULT),
    ("<think>\nDone.\n</think>\n\nsum 3", {"role": "user", "content": "And 4?"}),
    ("<think>\nFour.\n</think>\n\nNo.", {"role": "user", "content": "Why?"}),
)


def spoken(chat: Chat, said: Sequence[tuple[str, Message]], thoughts: Thoughts) -> list[Any]:
    """(kept, the whole prompt as a text) of each prompt of the conversation."""
    talk = Talk(chat, TOOLS, thoughts)
    talk.ask(START)
    found = [(talk.kept, chat.text(talk.ids))]
    for text, news in said:
        before = talk.ids
        sampled = (*chat.encode(text.removeprefix("<think>\n") if chat.opened else text), chat.stop)
        talk.hear(sampled, True)
        assert talk.ids == (*before, *sampled)
        talk.ask([news])
        whole = (*before, *sampled)
        assert talk.ids == (*whole[: talk.kept], *talk.new)
        found.append((talk.kept, chat.text(talk.ids)))
    return found


def test_a_template_that_drops_thoughts_is_known() -> None:
    assert Chat(tokenizer(DROPS)).drops and Chat(tokenizer(OPENED)).drops
    assert not Chat(tokenizer(KEEPS)).drops and not Chat(byte_tokenizer()).drops
    assert Chat(tokenizer(KEEPS), "m", False).drops, "the mark of no thought is in no history"


@pytest.mark.parametrize("template", [DROPS, OPENED])
def test_thoughts_are_dropped_when_the_user_speaks_again(template: str) -> None:
    chat = Chat(tokenizer(template))
    found = spoken(chat, SAID, "own")
    assert [kept is None for kept, _ in found] == [True, True, False, False]
    (_, first), (_, second), (_, third), (_, fourth) = found
    assert second.startswith(first) and "Three." in second, "a tool's result is no user"
    assert not any(thought in third for thought in ("Three.", "Done."))
    assert "sum 3" in third and '"number": 3' in third and third.count("And 4?") == 1
    assert not any(thought in fourth for thought in ("Three.", "Done.", "Four."))
    assert fourth.startswith(third.removesuffix("<think>\n")) and "No." in fourth


def test_what_is_rendered_anew_is_the_templates_own_rendering() -> None:
    chat = Chat(tokenizer())
    asked, replies = [m for _, m in SAID], [chat.parse(chat.encode(t), 0, ()) for t, _ in SAID]
    whole: list[Message] = list(START)
    for reply, news in zip(replies, asked, strict=True):
        whole += [{**reply.message, "reasoning_content": reply.thoughts}, news]
    assert spoken(chat, SAID, "own")[-1][1] == chat.render(whole, TOOLS)


@pytest.mark.parametrize("template", [DROPS, OPENED])
def test_kept_thoughts_make_one_sequence(template: str) -> None:
    found = spoken(Chat(tokenizer(template)), SAID, "keep")
    assert [kept for kept, _ in found] == [None] * 4
    for (_, before), (_, after) in itertools.pairwise(found):
        assert after.startswith(before)
    assert all(thought in found[-1][1] for thought in ("Three.", "Done.", "Four."))


def test_without_thinking_the_mark_of_no_thought_is_dropped() -> None:
    said = [(text.partition("</think>\n\n")[2], news) for text, news in SAID]
    found = spoken(Chat(tokenizer(), "m", False), said, "own")
    assert [kept is None for kept, _ in found] == [True, False, False, False]
    assert all(text.count("<think>") == 1 for _, text in found), "of the turn to come"
    kept = spoken(Chat(tokenizer(), "m", False), said, "keep")
    assert [text.count("<think>") for _, text in kept] == [1, 2, 3, 4]


def test_every_stretch_has_numbers_of_its_own() -> None:
    chat = Chat(tokenizer())
    talk = Talk(chat, TOOLS)
    talk.ask(START)
    assert talk.seed(5) == 5
    seeds = []
    for text, news in SAID:
        talk.hear((*chat.encode(text), chat.stop), True)
        talk.ask([news])
        seeds.append(talk.seed(5))
    assert seeds[0] == 5 and len(set(seeds)) == 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_thinker(tmp_path_factory.mktemp("thinker"), OPENED)


def played(policy: Any, turns: int = 3, **limits: Any) -> list[Trajectory]:
    suite = AskingSuite(turns)
    tasks = [t for t in suite.tasks("train")[:4] for _ in range(4)]
    agent = AgentSpec("thinker")
    return play(policy, suite, agent, tasks, range(16), **{"max_tokens": 24, **limits})


@pytest.mark.slow
@pytest.mark.parametrize("thoughts", ["own", "keep"])
def test_the_engine_answers_a_cut_conversation_as_a_new_one(
    model: Path, thoughts: Thoughts, monkeypatch: Any
) -> None:
    """Every turn again, alone in a fresh engine: same ids, same log-probabilities."""
    policy = LocalPolicy(model, batch=16, context=600, thoughts=thoughts)
    orders: list[Order] = []
    submit = Scheduler.submit

    def heard(engine: Scheduler, order: Order) -> None:
        orders.append(order)
        submit(engine, order)

    monkeypatch.setattr(Scheduler, "submit", heard)
    found = played(policy)
    computed = policy._engine.computed
    monkeypatch.undo()
    cut = [turn.kept for t in found for turn in t.turns if turn.kept is not None]
    assert bool(cut) == (thoughts == "own")
    assert sum(turn.malformed is not None for t in found for turn in t.turns) > 0
    assert sum(bool(turn.thoughts) for t in found for turn in t.turns) > 10
    alone = Scheduler(policy._backend, 16, 600, policy.chat.stop)
    seeds = {(o.episode, o.ids): o.seed for o in orders}
    for n, t in enumerate(found):
        ids: tuple[int, ...] = ()
        for turn in t.turns:
            ids = (*ids[: turn.kept], *turn.prompt_ids)
            alone.submit(Order(n, ids, None, seeds[n, turn.prompt_ids], 1.0, 24))
            while not (done := alone.step()):
                pass
            alone.release(n)
            assert done[0].ids == turn.token_ids
            assert done[0].logprobs == pytest.approx(turn.logprobs, abs=1e-4)
            ids = (*ids, *turn.token_ids)
    distinct = sum(len(turn.prompt_ids) + len(turn.token_ids) for t in found for turn in t.turns)
    assert computed < distinct, "the cache keeps what stretches share"


def test_the_context_is_that_of_the_stretch(model: Path) -> None:
    """What was dropped takes no room any more."""
    full = {}
    for thoughts in ("own", "keep"):
        policy = LocalPolicy(model, batch=16, context=300, thoughts=thoughts)  # type: ignore[arg-type]
        found = played(policy, turns=8)
        full[thoughts] = sum(t.stop == "context_limit" for t in found)
        for t in found:
            size = 0
            for turn in t.turns:
                size = (size if turn.kept is None else turn.kept) + len(turn.prompt_ids)
                size += len(turn.token_ids)
                assert size <= 300
    assert full["own"] < full["keep"]
