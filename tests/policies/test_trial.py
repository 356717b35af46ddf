"""The turn that every server is asked for before a run begins, against real HTTP servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from at_servers import answering, policy
from playing import with_tokens

from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.store import read_json, read_lines
from trace_bench.rehearse.scripted import Answer, Server, chat

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FIRST = TurnRequest(-1, ({"role": "user", "content": "Hello."},), (TOOL,), max_tokens=33)
LONG = "This model's maximum context length is 20 tokens. However, you requested 74 tokens."
NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


def tried(*urls: str) -> str:
    with policy(*urls, capacity=2) as acting:
        assert acting.at_servers
        try:
            return acting.try_turn(FIRST)
        finally:
            assert not acting._open and not any(acting._load), "its episode is forgotten"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer({"error": "no such key"}, 401), r"no such key.*`policy\.key_env`"),
        (Answer({"error": "broken"}, 500), r"HTTP 500: .*broken.*`policy\.base_url`"),
        (Answer(reset=True), r"gives no turn: .*`policy\.base_url`"),
        (Answer("<html>Log in</html>"), r"no chat completion: '<html>Log in</html>'.*base_url"),
        (Answer({"choices": []}), r"no chat completion.*`policy\.base_url`"),
        (Answer({"choices": [{}]}), r"KeyError: 'message'.*`policy\.base_url`"),
        (Answer({"error": "no model m"}, 404), r"Does it serve 'm'.*`model\.name`"),
        (Answer({"error": {"message": NO_PARSER}}, 400), r"without a parser .*--tool-call-parser"),
        (Answer({"error": "seed"}, 400), r"refuses this request: .*`policy\.extra`"),
        (Answer({"error": {"message": LONG}}, 400), r"no room .*context length is 20 tokens\. How"),
    ],
    ids=["401", "500", "reset", "html", "empty", "no-message", "404", "parser", "400", "context"],
)
def test_what_would_fail_every_episode_is_reported_at_once(answer: Answer, said: str) -> None:
    with answering(answer) as server, pytest.raises(UserError, match=said) as caught:
        tried(server.url)
    assert f"the server {server.url} " in str(caught.value)


def test_every_server_is_asked() -> None:
    with answering(chat("Hi.", "m")) as one, answering(Answer({}, 403)) as two:
        asked = "asked the server for a first turn with 1 tools: 1 requests, no rollout"
        assert tried(one.url) == asked
        assert "asked 2 servers" in tried(one.url, one.url)
        with pytest.raises(UserError, match=two.url):
            tried(one.url, two.url)
    (body, *_) = one.bodies()
    assert (body["tools"], body["max_tokens"]) == ([TOOL], 33)


def reading(prompt: Callable[[dict[str, Any]], list[int]]) -> Any:
    """A vLLM, which says which tokens it read."""

    return answering(lambda body: with_tokens(prompt(body), [3], [-0.5]), owner="vllm")


def test_tools_that_do_not_reach_the_prompt() -> None:
    why = r"leaves tools out of the prompt.*2 tokens.*`model\.name`"
    with reading(lambda body: [1, 2]) as server, pytest.raises(UserError, match=why):
        tried(server.url)
    with reading(lambda body: [1, 2, 9] if "tools" in body else [1, 2]) as server:
        assert tried(server.url).endswith(": 2 requests, no rollout")


def test_a_prompt_that_leaves_less_than_a_whole_turn_still_fits() -> None:
    """vLLM refuses `max_tokens` then; without that number it says as much as there is room for."""

    def tight(body: dict[str, Any]) -> Answer:
        full = Answer({"error": {"message": LONG}}, 400)
        return full if "max_tokens" in body else chat("Hi.", "m")

    with answering(tight, owner="vllm") as server:
        assert tried(server.url)
    with answering(tight) as server, pytest.raises(UserError, match="no room for the first prompt"):
        tried(server.url)


def settings(server: Server, folder: Path) -> list[str]:
    acting = ["policy=openai", f"policy.base_url={server.url}", "model=served", "model.name=m"]
    few = ["evaluation.limit=2", "evaluation.split=dev", "policy.retries=0"]
    return ["method=base", *few, *acting, f"run_dir={folder}"]


def test_a_run_asks_once_and_charges_nothing_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is on disk needs no server any more: neither a finished run nor one that was killed just
    before its end."""
    folder = tmp_path / "run"
    with answering(chat("Sorry.", "m")) as server:
        assert main(settings(server, folder)) == 0
        asked = server.bodies()
    said = capsys.readouterr().err
    assert "asked the server for a first turn with" in said and "1 requests, no rollout" in said
    evaluated = [x for x in read_lines(folder / "evaluation.jsonl") if x["agent"] == "base"]
    assert len(asked) == 1 + sum(x["turns"] for x in evaluated)
    assert asked[0]["messages"] in [body["messages"] for body in asked[1:]]
    assert read_lines(folder / "ledger.jsonl") == []
    summary = read_json(folder / "summary.json")
    assert summary["usage"]["policy"]["requests"] == 1 + len(asked), "and one for the models"
    (folder / "summary.json").unlink()
    assert main(settings(server, folder)) == 0
    again = read_json(folder / "summary.json")
    assert again["score"] == summary["score"]
    assert again["usage"]["policy"]["requests"] == 0
