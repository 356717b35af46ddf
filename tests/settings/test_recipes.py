"""Settings that are far from what suits a model of its size are said before the run."""

from __future__ import annotations

import pytest

from trace_bench.runner.api import compose_plain
from trace_bench.settings.identity import parts_of
from trace_bench.settings.recipes import far_off
from trace_bench.settings.schema import parse

SERVED = ("policy=openai", "policy.base_url=http://127.0.0.1:9/v1", "trainer=verl", "model=hf")


def said(*words: str, trains: bool = True) -> list[str]:
    (data,) = compose_plain([[*words]], None)
    settings = parse(data)
    return far_off(settings, parts_of(settings), trains)


def test_the_tiny_models_settings_do_not_go_with_a_model_of_8b() -> None:
    large = (*SERVED, "model.path=Qwen/Qwen3-8B")
    tokens, rate = said(*large)
    assert tokens.startswith("policy.max_tokens=96 is far from what suits a model of 8B")
    assert rate.startswith("trainer.learning_rate=0.003") and "1e-05 (TRACE" in rate
    assert said(*large, trains=False) == [tokens]
    assert said(*large, "policy.max_tokens=1024", "trainer.learning_rate=3e-5") == []


@pytest.mark.parametrize("rate", ["1e-4", "0.1"])
def test_a_rate_ten_times_off_is_said_for_the_tiny_model_too(rate: str) -> None:
    (line,) = said(f"trainer.learning_rate={rate}")
    assert "0.000992B parameters, 0.003" in line
    assert said() == [] == said("policy=idle", f"trainer.learning_rate={rate}")


@pytest.mark.parametrize(
    ("path", "size"),
    [("a/mistral-8x7B", "56B"), ("2B/gpt-oss-20b", "20B"), ("Qwen/Qwen2.5-0.5B_sft", "0.5B")],
)
def test_sizes_are_read_from_the_models_own_name(path: str, size: str) -> None:
    assert f"a model of {size} parameters" in said(*SERVED, f"model.path={path}")[-1]


def test_nothing_is_said_of_a_model_of_unknown_size() -> None:
    assert said(*SERVED, "model.path=someone/agent") == []
