"""What every machine of a cluster must have: keys by name, servers, folders, the hub's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import verl_job as jobs

from trace_bench.rehearse.scripted import models, serve
from trace_bench.trainers.verl.compose import environment
from trace_bench.trainers.verl.nodes import asked, joined, missing

PAPER = ["experiment=paper_tau2", "llm.shared.key_env=MY_KEY"]


def test_what_a_machine_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "sk-planted")
    monkeypatch.delenv("GONE", raising=False)
    with serve(lambda path, body: models("m")) as server:
        assert missing(["THERE"], [server.url], [str(tmp_path)]) == []
        gone = server.url
    lacking = missing(["THERE", "GONE"], [gone], [str(tmp_path), str(tmp_path / "no")])
    assert lacking[0] == "the environment variable GONE is not set"
    assert lacking[1].startswith(f"the server {gone} does not answer (")
    assert lacking[2] == f"it does not see the folder {tmp_path / 'no'}"
    assert len(lacking) == 3 and "sk-planted" not in str(lacking)


def test_machines_that_join_late_are_waited_for() -> None:
    first, second = {"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": True}
    gone = {"NodeID": "c", "Alive": False}
    answers = iter([[first, gone], [first, gone], [first, gone, second]])
    assert joined(lambda: next(answers), 2) == [first, second]
    assert joined(lambda: [first, gone], 2, limit=0) == [first]


def job(**changes: Any) -> Any:
    from trace_bench.settings.compose import compose
    from trace_bench.settings.identity import plain

    return jobs.spec(settings=plain(compose(PAPER)), **changes)


def test_the_roles_of_episodes_are_asked_for() -> None:
    names = {role["key_env"] for role in asked(job())}
    assert names == {"MY_KEY"} and len(asked(job())) == 3  # user, judge and simulator
    assert asked(jobs.spec()) == []


def test_other_machines_have_the_hubs_settings_but_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    monkeypatch.setenv("HF_TOKEN", "hf-planted")
    monkeypatch.setenv("MY_KEY", "sk-planted")
    variables = environment(job(), tmp_path)
    assert variables["HF_ENDPOINT"] == "https://hub.example" and "planted" not in str(variables)
    model = jobs.base(jobs.settings())  # in a folder: nothing is read from a hub
    assert "HF_ENDPOINT" not in environment(jobs.spec(agent=model), tmp_path)
