"""A served agent thinks as it did in its run: by the run's settings, in this process and behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from servers.agent import serving
from test_forward import Behind
from thinking import OPENED, SWITCH, save_thinker

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


def test_this_process_thinks_as_the_run_did(tmp_path: Path) -> None:
    save_thinker(tmp_path / "model", TEMPLATE)
    counts = []
    for name, settings in (("a", {}), ("b", {"thinking": False})):
        run = run_in(tmp_path / name, **settings)
        options = _parser().parse_args([str(run)])
        agent = AgentSpec(str(tmp_path / "model"))
        with serving(local(options, agent, ServeSettings(), tmp_path)) as served:
            body = {"model": "agent", "messages": ONE, "max_tokens": 2}
            answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60)
            counts.append(answer.json()["usage"]["prompt_tokens"])
    assert counts[0] < counts[1], "the mark of no thought is longer than the beginning of one"


def test_the_server_behind_is_told_whether_to_think(tmp_path: Path) -> None:
    write_json(tmp_path / AGENT, AgentSpec("m"))
    with serve(Behind()) as behind:
        for settings, wanted in (({}, None), ({"thinking": False}, {"enable_thinking": False})):
            run = run_in(tmp_path / "run", **settings)
            options = _parser().parse_args([str(run), "--backend", behind.url])
            answerer = forward(options, AgentSpec("m"), ServeSettings(), tmp_path)
            with serving(answerer) as served:
                body = {"model": "agent", "messages": ONE}
                httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=30)
            assert behind.bodies()[-1].get("chat_template_kwargs") == wanted


def test_what_is_no_run_has_the_default(tmp_path: Path) -> None:
    assert thinking_of(str(tmp_path)) is None
