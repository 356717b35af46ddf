"""Building images: what goes wrong says what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trace_bench.core.errors import UserError
from trace_bench.sandbox.build import main, names
from trace_bench.sandbox.engine import Docker, Sandbox

pytestmark = pytest.mark.docker
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_an_unknown_image_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_image"]) == 2
    error = capsys.readouterr().err
    assert "unknown image 'no_such_image'; allowed: babyai, base, bfcl, tau2" in error


def test_a_base_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["base", "--base", "no-such-registry.invalid/python:3.11"]) == 2
    error = capsys.readouterr().err
    assert "no-such-registry.invalid/python:3.11 is not here and cannot be pulled" in error
    assert "--base debootstrap" in error


@root
def test_no_permission_on_the_socket_is_reported_with_what_to_do() -> None:
    Docker.connect(Sandbox("docker"))  # as root it works
    os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="may not be opened by this user; add the user to the"):
            Docker.connect(Sandbox("docker"))
    finally:
        os.seteuid(0)


def test_the_image_holds_no_model_and_no_torch() -> None:
    assert {"base", "bfcl", "tau2", "verl"} <= set(names())
    look = "import os; print(*(f'{p}/{n}' for p, d, f in os.walk('.') for n in f), sep='\\n')"
    command = ["docker", "run", "--rm", "--entrypoint=python3", "--workdir=/opt", "--network=none"]
    said = subprocess.run(
        [*command, "trace-bench/base", "-c", look], capture_output=True, text=True, check=True
    ).stdout
    files = [Path(line) for line in said.splitlines()]
    heads = {"/".join(f.parts[:2]) for f in files}
    assert "project/trace_bench" in heads and "site/numpy" in heads
    assert not {"site/torch", "site/transformers", "site/docker"} & heads
    assert not [f for f in files if f.suffix == ".safetensors"]
