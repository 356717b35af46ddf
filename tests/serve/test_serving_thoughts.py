"""A served agent thinks as it did in its run: by the run's settings, in this process and behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from servers.agent import serving
from test_forward import Behind
from thinking import OPENED, SWITCH, save_thinker

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import AGENT, CONFIG
from trace_bench.core.store import write_json, write_text
from trace_bench.core.types import AgentSpec
from trace_bench.rehearse.scripted import serve
from trace_bench.serve.__main__ import _parser, forward, local, thinking_of
from trace_bench.serve.request import ServeSettings

TEMPLATE = OPENED.replace("assistant\n<think>\n", "assistant\n" + SWITCH + "{% if " + (
    "enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
))  # fmt: skip
ONE = [{"role": "user", "content": "One."}]


def run_in(folder: Path, **policy: Any) -> Path:
    """What is left of a run with these settings, as far as `serve` reads it."""
    write_json(folder / AGENT, AgentSpec(str(folder.parent / "model")))
    write_text(folder / CONFIG, "".join(["policy:\n  name: local\n",
               *(f"  {k}: {str(v).lower()}\n" for k, v in policy.items())]))  # fmt: skip
    return folder


def prompts(run: Path, say: str) -> tuple[int, int]:
    """The tokens that a conversation's first and second prompt have there."""
    agent = AgentSpec(str(run.parent / "model"))
    answerer = local(_parser().parse_args([str(run)]), agent, ServeSettings(), None)
    body: dict[str, Any] = {"model": "agent", "max_tokens": 24, "temperature": 1, "seed": 1}
    with serving(answerer, agent) as served:
        counts, messages = [], ONE
        for _ in range(2):
            answer = httpx.post(
                f"{served.url}/v1/chat/completions", json={**body, "messages": messages}, timeout=60
            ).json()
            counts.append(answer["usage"]["prompt_tokens"])
            said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            messages = [*messages, said, {"role": "user", "content": say}]
    return counts[0], counts[1]


def test_this_process_thinks_as_the_run_did(tmp_path: Path) -> None:
    save_thinker(tmp_path / "model", TEMPLATE)
    own, keep = prompts(run_in(tmp_path / "a"), "Two."), prompts(
        run_in(tmp_path / "b", thoughts="keep"), "Two."
    )  # fmt: skip
    off = prompts(run_in(tmp_path / "c", thinking=False), "Two.")
    assert own[0] == keep[0] < off[0], "the mark of no thought is longer than the beginning of one"
    assert own[1] < keep[1], "what was thought stays in the prompt"


def test_the_server_behind_is_told_whether_to_think(tmp_path: Path) -> None:
    write_json(tmp_path / AGENT, AgentSpec("m"))
    with serve(Behind()) as behind:
        for settings, wanted in (({}, None), ({"thinking": False}, {"enable_thinking": False})):
            run = run_in(tmp_path / "run", **settings)
            options = _parser().parse_args([str(run), "--backend", behind.url])
            answerer = forward(options, AgentSpec("m"), ServeSettings(), None)
            with serving(answerer, AgentSpec("m")) as served:
                body = {"model": "agent", "messages": ONE}
                httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=30)
            assert behind.bodies()[-1].get("chat_template_kwargs") == wanted


def test_what_is_no_run_has_the_defaults_and_a_bad_value_is_named(tmp_path: Path) -> None:
    assert vars(thinking_of(str(tmp_path))) == {"thinking": None, "thoughts": "own"}
    with pytest.raises(UserError, match=r"sometimes.*policy\.thoughts"):
        thinking_of(str(run_in(tmp_path / "run", thoughts="sometimes")))
