"""Containers by a Docker engine."""

from __future__ import annotations

import os
from collections.abc import Iterable

from trace_bench.core.errors import EngineError
from trace_bench.sandbox.engine import OF_RUNS, OWNER, Containers, answer, program
from trace_bench.settings.schema import SandboxSettings


class Docker(Containers):
    @classmethod
    def connect(cls, sandbox: SandboxSettings) -> str:
        docker = program("docker", "apt-get install docker.io", sandbox)
        try:
            answer([docker, "version", "--format={{.Server.Version}}"], sandbox)
        except EngineError as error:
            if "permission denied" in str(error).lower():
                raise EngineError(
                    "the Docker engine's socket may not be opened by this user; add the user to "
                    "the group `docker` (and log in again), or change `sandbox` to process."
                ) from error
            address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
            raise EngineError(
                f"no Docker engine answers at {address}: start one (systemctl start docker, or "
                "dockerd), or set DOCKER_HOST to where one runs, or change `sandbox` to process. "
                f"The error: {error}"
            ) from error
        return docker

    @classmethod
    def without(cls, image: str) -> str:
        name = image.split("/")[-1].split(":")[0]
        return (
            f"the image {image} is missing. Build it with `python -m trace_bench.sandbox.build "
            f"{name}`, or change `sandbox` to process."
        )

    @classmethod
    def listed(cls, program: str, sandbox: SandboxSettings) -> Iterable[tuple[str, str, str]]:
        fields = '--format={{.ID}}\t{{.State}}\t{{.Label "' + OWNER + '"}}'
        for line in answer([program, *OF_RUNS, fields], sandbox).splitlines():
            container, state, owner = line.split("\t")
            yield container, state, owner
