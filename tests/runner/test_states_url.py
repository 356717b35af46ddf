"""TRACE with its default route behind servers, from start to end over real HTTP: turns with
adapters loaded at run time, and hidden states from this project's own `serve --states`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from servers.agent import serving
from servers.lora import lora_server

from trace_bench.core.errors import UserError
from trace_bench.core.types import AgentSpec
from trace_bench.policies.local import LocalPolicy
from trace_bench.rehearse.scripted import models, serve
from trace_bench.runner.forecast import describe
from trace_bench.runner.pipeline import run
from trace_bench.serve.engine import LocalEngine
from trace_bench.serve.local import Local, States
from trace_bench.serve.request import ServeSettings
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of
from trace_bench.tiny import MODEL_FOLDER


def described(given: list[str]) -> str:
    settings = compose(given)
    return describe(settings, parts_of(settings))[0]


def there(url: str, *more: str) -> list[str]:
    return ["policy=openai", f"policy.base_url={url}", "model.name=tiny", *more]


@pytest.mark.slow
def test_trace_trains_and_routes_by_states_behind_servers(tmp_path: Path) -> None:
    acting = LocalPolicy(MODEL_FOLDER, batch=16, threads=1)
    agent = AgentSpec(str(MODEL_FOLDER))
    shown = Local(LocalEngine(acting, agent, 8))
    how = ServeSettings(name="tiny")
    small = ["method=trace", "budget=448", "method.minimum_training=64", "seed=1"]
    small += ["evaluation.yardsticks=false", "evaluation.limit=16", "checkpoints=[]"]
    with (
        lora_server(MODEL_FOLDER, "tiny") as (turns, server),
        serving(shown, agent, how, states=States(acting)) as states,
    ):
        given = there(turns, f"policy.states_url={states.url}/v1", f"run_dir={tmp_path / 'r'}")
        run(compose([*small, *given]))
    trained = json.loads((tmp_path / "r" / "agent.json").read_text())
    assert trained["router"]["kind"] == "classifier" and len(trained["adapters"]) >= 2
    lines = map(json.loads, (tmp_path / "r" / "evaluation.jsonl").read_text().splitlines())
    acted = [e["adapter"] for e in lines if e["agent"] == "final"]
    assert len(acted) == 16 and all("*" in str(name) for name in acted), "no sum acted"
    sums = [name for name in server.loaded if "*" in name]
    assert {name.rpartition("+")[0] for name in sums} >= set(acted)
    usage = json.loads((tmp_path / "r" / "summary.json").read_text())["llm"]["usage"]["policy"]
    assert usage["failures"] == 0 and usage["states"] > 16
    assert any(line.startswith("states 200") for line in states.lines)


def test_without_states_both_ways_out_are_named_before_the_run(tmp_path: Path) -> None:
    with serve(lambda path, body: models("tiny")) as server:
        with pytest.raises(UserError) as refused:
            run(compose(["method=trace", *there(server.url), f"run_dir={tmp_path / 'r'}"]))
        assert not [path for path, _ in server.requests if path.endswith("completions")]
    for way in ("method.route=retrieval", "policy.states_url", "docs/servers.md"):
        assert way in str(refused.value)


def test_the_forecast_names_the_command_and_asks_the_second_server() -> None:
    with serve(lambda path, body: models("tiny")) as server:
        gone = "policy.states_url=http://127.0.0.1:1/v1"
        text = described(["method=trace", *there(server.url, gone)])
        assert "--runner pooling --convert embed" in text and "trace_bench.serve" in text
        assert "policy.states_url: http://127.0.0.1:1" in text and "ShowsState" not in text
        two = f"policy.states_url={server.url}"
        text = described(["method=trace", *there(server.url, two)])
        assert "nothing keeps it from running here" in text
        text = described(["method=trace", "method.route=retrieval", *there(server.url)])
        assert "nothing keeps it from running here" in text and "--runner pooling" not in text
        text = described(["method=trace", "method.route=gate", *there(server.url, two)])
        assert "`HoldsModel`" in text and "at servers set method.route=soft" in text
        key = "policy.states_key_env=NO_SUCH_VARIABLE"
        text = described(["method=trace", *there(server.url, two, key)])
        assert "policy.states_url: " in text and "NO_SUCH_VARIABLE is empty" in text
