"""SmolLM2 from its package, where `python -m trace_bench.models get smollm2` has made it ready."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from toy import TOOLS

from trace_bench.models import CacheSettings, place, smollm2
from trace_bench.policies.chat import Chat
from trace_bench.policies.engine.decoder import Decoder
from trace_bench.policies.engine.layout import Rows
from trace_bench.policies.loading import load_model, load_tokenizer
from trace_bench.policies.local import backend_of

pytestmark = pytest.mark.skipif(
    not place(None).exists(),
    reason="SmolLM2 is not here: python -m trace_bench.models get smollm2 (93 MB)",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(smollm2(CacheSettings()))


def test_its_tokenizer_ends_turns_and_loses_nothing(folder) -> None:
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    chat = Chat(tokenizer, "SmolLM2")
    for text in ("Call +1 415 555 0123 , please .", " it 's 3.14", "naïve ▁ 日本\n\n\ttab"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add."}]
    ids = chat.first(messages, TOOLS)
    assert tokenizer.decode(ids).startswith("<|im_start|>system\nBe brief.\n<tools>\n")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_computes_what_transformers_computes(folder, dtype) -> None:
    if dtype == "bfloat16" and not torch.cpu.get_capabilities().get("avx512_bf16"):
        pytest.skip("this processor has no bfloat16")
    model, tokenizer = load_model(folder, dtype=dtype)
    backend = backend_of(model, 4, 256)
    assert isinstance(backend, Decoder)
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe"
    ids = np.array(tokenizer.encode(text, add_special_tokens=False))
    one = np.array([0])
    with torch.inference_mode():
        backend.forward(Rows(ids[:-1], one, one, np.array([len(ids) - 1]), [None]))
        found = backend.forward(Rows(ids[-1:], one, np.array([len(ids) - 1]), one + 1, [None]))[0]
        expected = model(torch.from_numpy(ids)[None]).logits[0, -1]
    assert tokenizer.decode([int(found.argmax())]) == " capital"
    apart = (found.log_softmax(-1) - expected.log_softmax(-1)).abs()
    assert float(apart.max()) < (2e-4 if dtype == "float32" else 0.5)
