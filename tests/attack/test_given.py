"""Addresses, files and texts that a person or a stranger gives: refused at once, in a line that
shows no password."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from forks import forked
from toy import ToySuite

from trace_bench.__main__ import main
from trace_bench.core.beginning import read_agent
from trace_bench.core.decode import Limits, fault_of
from trace_bench.core.errors import UserError
from trace_bench.core.store import write_json
from trace_bench.core.text import without_password
from trace_bench.llm.client import Client, Endpoint, LLMError, check_urls
from trace_bench.rehearse.scripted import Answer, serve
from trace_bench.runner.trackers import Metrics, Silent
from trace_bench.settings.compose import compose

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@host/v1", f"http:user:{SECRET}@host/v1", f"user:{SECRET}@host/v1",
        f"//user:{SECRET}@host/v1", f"ftp://{SECRET}@host", f"http://host/v1?key={SECRET}",
    ],
)  # fmt: skip
def test_a_password_in_an_address_is_not_shown(url: str) -> None:
    with pytest.raises(UserError, match=r"`llm\.judge\.base_url` holds a name") as caught:
        check_urls((url,), "llm.judge.base_url")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        ["llm.judge=URL"], ["policy=openai", "policy.base_url={a: 'URL'}"], ["'URL'"],
        ["env.factory=FOUND"],
        ["llm.user.by=endpoint", "llm.user.model=m", "llm.user.base_url='URL'"],
    ],
)  # fmt: skip
def test_a_password_in_a_setting_reaches_no_message_and_no_file(settings: list[str]) -> None:
    address = f"http://user:{SECRET}@127.0.0.1:9/v1"
    given = [s.replace("URL", address).replace("FOUND", f"{__name__}:refused") for s in settings]
    _, said = forked("trace_bench", "method=base", "policy=idle", "evaluation.limit=1",
                     "evaluation.split=dev", "run_dir=run", *given)  # fmt: skip
    assert "error: " in said or "run: run" in said, said
    assert SECRET not in said and "user:" not in said, said
    files = [p for p in Path().rglob("*") if p.is_file()]
    assert not any(SECRET.encode() in p.read_bytes() for p in files)


def refused() -> None:
    """A part that says in its error where it has asked."""
    raise ConnectionError(f"no answer of http://user:{SECRET}@127.0.0.1:9/v1")


class Unreached(ToySuite):
    def make(self) -> Any:
        return refused()


def test_a_password_in_an_environments_error_reaches_no_file() -> None:
    code, said = forked("trace_bench", "method=base", f"env.factory={__name__}:Unreached",
                        "policy=idle", "run_dir=run", "max_lost=1",
                        "evaluation.split=train", "protocol=paper")  # fmt: skip
    assert code != 0 and "ConnectionError: no answer of http://***@127.0.0.1:9" in said, said
    kept = [p.name for p in Path("run").rglob("*") if p.is_file() and SECRET in p.read_text()]
    assert SECRET not in said and not kept


@pytest.mark.parametrize(
    "address",
    [
        "user:hunter2@gpu4:8000/v1", "base_url=user:hunter2@[::1]:8000",
        "http://user:hunt@hunter2@gpu4/v1", "user:a@hunter2@localhost",
    ],
)  # fmt: skip
def test_a_password_before_any_host_is_masked_in_every_error(address: str, tmp_path: Path) -> None:
    with serve(lambda path, request: Answer({"error": f"not from {address}"}, 403)) as server:
        asking = Client(Endpoint((server.url,), retries=0))
        with pytest.raises(LLMError, match=r"\*\*\*@") as caught:
            asking.ask("/chat/completions", {"model": "m", "messages": []})
        asking.close()

    class Refusing(Silent):
        def log(self, values: Any) -> None:
            raise ConnectionError(f"no answer of {address}")

    logged: list[str] = []
    metrics = Metrics(tmp_path / "metrics.jsonl", Refusing(), logged.append)
    metrics.log({"loss": 1.0})
    assert "***@" in logged[0] and SECRET not in f"{caught.value}{logged}{metrics.failure}"


@pytest.mark.parametrize(
    "text",
    [
        "bob@example.com", "{'email': 'bob@x.org'}", "at 10:30, bob@x.org", "mail: bob@x.org",
        "train/env:converts_values@0010", "base:1.0@sha256:00ff", "10:30 @ home", "a: b@c",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_password_stays(text: str) -> None:
    assert without_password(text) == text


def test_a_typed_command_is_repeated_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["policy.base_url=user:hunter2@gpu4", "budget=many"]) == 2
    assert "trace_bench: policy.base_url=***@gpu4 budget=many\n" in terminal.getvalue()
    assert SECRET not in terminal.getvalue()


@pytest.mark.parametrize("choice", ["env=1", "method=-2", "trainer=1e5", "env=1_0.5", "env=inf"])
def test_a_number_is_no_choice_of_a_group(choice: str) -> None:
    name = choice.partition("=")[0]
    with pytest.raises(UserError, match=f"leave `{name}` out, or name one of its files"):
        compose([choice])


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://host:port/v1", "http://", "http:///v1", "host:8000", "http://a\x00b/v1",
     "http://host:99999999/v1", "http://\u2024\u2024/v1", "http://xn--/v1", "ftp://host/v1", ""],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"policy\.base_url=.* allowed: an address"):
        check_urls((url,), "policy.base_url")


def test_a_prompt_of_50_mb_is_no_agents(tmp_path: Path) -> None:
    write_json(tmp_path / "agent.json", {"model": "m", "prompt": "x" * 50_000_000})
    with pytest.raises(UserError, match="`prompt`: its texts have more than 262144 characters"):
        read_agent(tmp_path / "agent.json")


def test_a_false_length_passes_no_limit() -> None:
    class Short(str):
        def __len__(self) -> int:
            return 0

    class Empty(list[str]):
        def __len__(self) -> int:
            return 0

    text = Short("x" * 100)
    for value in (text, [text], {"a": text}, {text: 1}):
        assert fault_of(value, Limits(50)) == "its texts have more than 50 characters"
    assert fault_of(Empty("x" * 9), Limits(50, items=8)) == "it has more than 8 elements"
