"""What every machine of a cluster must have, without Ray: keys by name, servers, folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_bench.core.errors import UserError
from trace_bench.rehearse.scripted import models, serve
from trace_bench.trainers.verl.preflight import joined, missing, refuse
from trace_bench.trainers.verl.settings import VerlSettings


def test_what_a_machine_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "sk-planted")
    monkeypatch.delenv("GONE", raising=False)
    with serve(lambda path, body: models("m")) as server:
        assert missing(["THERE"], [server.url], [str(tmp_path)]) == []
        gone = server.url
    lacking = missing(["THERE", "GONE"], [gone], [str(tmp_path), str(tmp_path / "no")])
    assert lacking[0] == "the environment variable GONE is not set"
    assert lacking[1].startswith(f"the server {gone} does not answer (")
    assert lacking[2:] == [f"it does not see the folder {tmp_path / 'no'}"]
    refuse(["10.0.0.1"], [[]])
    with pytest.raises(UserError, match=r"^machine 10\.0\.0\.2: .*GONE.*; machine 10\.0\.0\.2: "):
        refuse(["10.0.0.1", "10.0.0.2"], [[], lacking])
    assert "sk-planted" not in str(lacking)


def test_machines_that_join_late_are_waited_for() -> None:
    first, second = {"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": True}
    gone = {"NodeID": "c", "Alive": False}
    answers, two = iter([[first, gone], [first, gone, second]]), VerlSettings(nnodes=2)
    assert joined(lambda: next(answers), two) == [first, second]
    with pytest.raises(UserError, match=r"^1 of trainer\.nnodes=2 machines have joined"):
        joined(lambda: [first, gone], two, limit=0)
