"""Turns that are held to a JSON schema: of that shape, and nothing else in the batch moves."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from models import TEMPLATE, byte_tokenizer, save_model

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import Turn
from trace_bench.policies.chat import Chat
from trace_bench.policies.engine.sampling import sample
from trace_bench.policies.loading import load_tokenizer
from trace_bench.policies.local import LocalPolicy
from trace_bench.serve.answer import BadSchema, Guides
from trace_bench.tiny import shipped

SCHEMA = {
    "type": "object",
    "required": ["seen", "item", "met"],
    "properties": {
        "seen": {"type": "string", "maxLength": 12},
        "item": {"enum": [1, 2, 30]},
        "met": {"type": "boolean"},
    },
    "additionalProperties": False,
}
VOCABULARY = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("guided") / "model")


def turns(model: Path, guided: Mapping[int, Mapping[str, Any]], heat: float) -> dict[int, Turn]:
    """One turn each of six episodes, three of which begin alike; some are held to a schema."""
    policy = LocalPolicy(model, batch=6, threads=1)
    requests = [
        TurnRequest(n, ({"role": "user", "content": f"say {n // 3}"},), (), None, n, heat, 99)
        for n in range(6)
    ]
    guides = Guides(policy.chat, policy.vocab)
    policy.submit(requests, {n: guides.guide(schema) for n, schema in guided.items()})
    found: dict[int, Turn] = {}
    while len(found) < 6:
        for reply in policy.collect():
            assert reply.turn is not None, reply.error
            found[reply.episode] = reply.turn
    return found


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_held_turns_have_the_shape_and_the_others_do_not_move(model: Path, heat: float) -> None:
    free = turns(model, {}, heat)
    held = turns(model, {0: SCHEMA, 4: SCHEMA}, heat)
    for n in (0, 4):
        found = json.loads(held[n].reply["content"])
        jsonschema.validate(found, SCHEMA)
        assert held[n].reply["content"] == json.dumps(found, ensure_ascii=False)
        assert not held[n].truncated
    for n in (1, 2, 3, 5):
        assert held[n].token_ids == free[n].token_ids
        assert held[n].logprobs == pytest.approx(free[n].logprobs, abs=1e-4)
    with pytest.raises(ValueError):
        json.loads(free[0].reply["content"])


def test_the_log_probabilities_of_a_held_turn_are_the_models_own(model: Path) -> None:
    from transformers import AutoModelForCausalLM

    turn = turns(model, {0: SCHEMA}, 1.0)[0]
    ids = torch.tensor([[*turn.prompt_ids, *turn.token_ids]])
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(model)(ids).logits[0].log_softmax(-1)
    start = len(turn.prompt_ids)
    own = [float(logits[start + i - 1, t]) for i, t in enumerate(turn.token_ids)]
    assert turn.logprobs == pytest.approx(own, abs=1e-4)


def test_a_row_takes_an_allowed_token_even_at_the_end_of_the_distribution() -> None:
    mask = torch.tensor([False, True, True, False])
    for draw in (0.0, 0.5, 1.0):  # 1.0: what rounding may make of the largest draw
        logits = torch.tensor([[9.0, 0.0, 1.0, 9.0], [0.0, 1.0, 2.0, 9.0]])
        ids, logprobs = sample(logits, torch.ones(2), torch.tensor([draw, 1.0]), {0: mask})
        assert bool(mask[ids[0]]) and int(ids[1]) == 3
        assert float(logprobs[0]) < -7, "among all tokens, it is an unlikely one"


def nested(depth: int) -> dict[str, Any]:
    inner = {"type": "string"} if depth == 0 else nested(depth - 1)
    return {"type": "array", "items": inner}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "frob"}, "Invalid type"),
        ({"not": {"type": "string"}}, "Unimplemented"),
        ({"type": "string", "pattern": "("}, "unclosed"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "does not fetch"),
        (nested(200), "recursion limit"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(schema: dict[str, Any], words: str) -> None:
    guides = Guides(Chat(byte_tokenizer()), VOCABULARY)
    with pytest.raises(BadSchema, match=words):
        guides.guide(schema)


def test_tokens_are_read_as_the_bytes_that_they_stand_for() -> None:
    """A tokenizer whose decoder is written as converters of GGUF files write it, and the tiny
    agent's, in which words have a space before them."""
    from tokenizers import decoders

    odd = byte_tokenizer()
    parts = [decoders.ByteFallback(), decoders.Fuse(), decoders.ByteLevel()]
    odd.backend_tokenizer.decoder = decoders.Sequence(parts)
    text = '{"seen": "é agent", "item": 30, "met": true}'
    for tokenizer in (odd, load_tokenizer(shipped())):
        stop = tokenizer.eos_token_id
        guide = Guides(Chat(tokenizer), len(tokenizer)).guide(SCHEMA)
        for token in tokenizer.encode(text, add_special_tokens=False):
            assert bool(guide.allowed(torch.zeros(0))[token])
            guide.take(token)
        assert (
            guide.allowed(torch.zeros(0)).nonzero().flatten().tolist() == [stop] and not guide.error
        )


def test_without_the_package_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=r"the package llguidance: pip install '\.\[serve\]'"):
        Guides(Chat(byte_tokenizer()), VOCABULARY)


def test_no_form_is_held_where_the_prompt_begins_a_thought() -> None:
    opened = byte_tokenizer(
        TEMPLATE.replace(
            "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
        )
    )
    guides = Guides(Chat(opened), VOCABULARY)
    with pytest.raises(BadSchema, match="begins a thought"):
        guides.guide(SCHEMA)
