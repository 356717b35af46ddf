"""Settings that go with a model of its size and family."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of
from trace_bench.settings.models import billions_of

SERVED = ("policy=openai", "policy.base_url=http://127.0.0.1:9/v1", "trainer=verl", "model=hf")


LARGE = (*SERVED, "model.path=Qwen/Qwen3-8B")


def test_a_large_model_brings_its_own_settings_and_what_is_given_wins() -> None:
    settings = compose(LARGE)
    assert settings.trainer.options["learning_rate"] == 1e-5
    assert (settings.policy.max_tokens, settings.policy.context) == (2048, 32000)
    assert settings.policy.thinking is False
    chosen = (*LARGE, "trainer.learning_rate=3e-5", "policy.thinking=true")
    assert compose(chosen).policy.thinking is True


def test_a_family_without_a_switch_is_not_told_to_think_or_not() -> None:
    for name in ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "x-7b"):
        policy = compose((*SERVED, f"model.path={name}")).policy
        assert (policy.thinking, policy.context) == (None, 32000)


def test_the_tiny_model_keeps_the_settings_own_defaults() -> None:
    settings = compose([])
    assert settings.trainer.options["learning_rate"] == 3e-3
    assert (settings.policy.max_tokens, settings.policy.context) == (96, None)


def test_the_context_is_no_longer_than_the_model_holds(tmp_path: Path) -> None:
    (tmp_path / "agent-8b").mkdir()
    (tmp_path / "agent-8b" / "config.json").write_text('{"max_position_embeddings": 4096}')
    assert compose((*SERVED, f"model.path={tmp_path}/agent-8b")).policy.context == 4096


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("a/mistral-8x7B", 56.0),
        ("2B/gpt-oss-20b", 20.0),
        ("Qwen/Qwen2.5-0.5B_sft", 0.5),
        ("someone/agent", None),
    ],
)
def test_sizes_are_read_from_the_models_own_name(path: str, size: float | None) -> None:
    settings = compose((*SERVED, f"model.path={path}"))
    assert billions_of(settings, parts_of(settings)) == size


@pytest.mark.model
def test_a_model_that_is_made_before_a_run_is_not_made_by_its_settings(tmp_path: Path) -> None:
    settings = compose(["model=made", "env=toolsandbox", f"model.path={tmp_path / 'made'}"])
    assert list(tmp_path.iterdir()) == [] and settings.policy.max_tokens == 96
