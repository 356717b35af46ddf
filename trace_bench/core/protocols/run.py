"""Trackers, and the facts of a run that a factory may ask for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.protocols.environments import Suite
from trace_bench.core.protocols.training import Ask


class Tracker:
    """Receives a run's metrics, in order and each once, however often the run is resumed. Results
    never depend on it."""

    @abstractmethod
    def log(self, values: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def conclude(self, summary: Mapping[str, Any]) -> None: ...  # the run is finished

    @abstractmethod
    def close(self) -> None: ...

    @classmethod
    def awaits_result(cls) -> bool:
        """Whether the stored result of a run that was already finished is needed too, for instance
        because a sweep service started the run and waits for its score."""
        return False


class TakesReport(Tracker):
    """A tracker that also takes what a reader of the finished run looks at, once after `conclude`.
    `episodes`: the held-out episodes, all with the same keys, those of the trained and the base
    agent first. `page`: the report, an HTML file that is there during the call only."""

    @abstractmethod
    def report(self, episodes: Sequence[Mapping[str, Any]], page: Path) -> None: ...


@dataclass(frozen=True)
class RunContext:
    """The facts of the run, for a factory with a parameter of this type.

    fingerprint: the run's fingerprint. folder: the run folder; in another process, a folder in it.
    model: the base model's weights, a folder or a hub name; served_model: its name on the servers.
    batch (live episodes), context (tokens of an episode; None: as the policy decides), threads,
    device, dtype, max_turns, max_tokens: the settings of that name in `policy`. dev_split: the
    development split. settings: the run's settings as plain data; identity: the data behind the
    fingerprint.
    ask: asks the model that plays the simulated user; None if a program plays it. judge: asks the
    model that judges statements about a conversation, simulator: the model that plays tools; None
    without one. suite: the run's suite, for
    a policy. elsewhere: "module:function" that builds the run's suites in another process.
    at_servers: whether the policy's turns come from servers. clean_up: removes containers that
    ended processes left behind.
    """

    fingerprint: str = "unnamed"
    folder: Path = Path()
    seed: int = 0
    budget: int = 0
    model: str = ""
    served_model: str = ""
    batch: int = 128
    context: int | None = None
    threads: int | None = None
    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_turns: int = 20
    max_tokens: int = 96
    dev_split: str = "dev"
    settings: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = None
    judge: Ask | None = None
    simulator: Ask | None = None
    suite: Suite | None = None
    elsewhere: str = ""
    at_servers: bool = False
    clean_up: Callable[[], None] = lambda: None
