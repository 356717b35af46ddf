"""The roles besides the agent, and how each is played: their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from trace_bench.core.checked import PLACE
from trace_bench.core.types import Meta, Natural, Positive


@dataclass(frozen=True)
class SharedSettings:
    """Where models are. A role has what is shared, unless it says otherwise."""

    base_url: tuple[str, ...] | None = field(default=None, metadata=PLACE)
    """One address or a list of them; null in a role: llm.shared.base_url."""
    model: str | None = None
    """The model's name there; null in a role: llm.shared.model."""
    key_env: str | None = field(default=None, metadata=PLACE)
    """Name of the environment variable that holds the key; null in a role: llm.shared.key_env,
    where null sends no key."""


@dataclass(frozen=True)
class RoleSettings(SharedSettings):
    """How a role besides the agent is played. All settings but `by` are for the endpoint."""

    by: Literal["program", "endpoint"] = "program"
    """program: a program of this project, which needs no model; endpoint: a model on a server."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """0 is greedy."""
    seed: Natural = 42
    """Of the sampling, sent to the server."""
    max_tokens: Positive = 2048
    """Of one answer."""
    context: Annotated[int, Meta(ge=512)] = 32000
    """The model's context in tokens, answer included; what is sent is shortened."""
    tries: Positive = 3
    """How often to ask until an answer is usable; within episodes (user, simulator, judge) the
    number is fixed."""
    deadline: Annotated[float, Meta(ge=0.1)] = field(default=300.0, metadata=PLACE)
    """Seconds for one request."""
    retries: Natural = field(default=5, metadata=PLACE)
    """Of a failed request."""
    patience: Annotated[float, Meta(ge=0)] = field(default=600.0, metadata=PLACE)
    """Seconds in which a server that has answered and is gone is waited for, as in a restart."""
    concurrency: Positive = field(default=64, metadata=PLACE)
    """Requests at once; as many as `policy=openai` has live episodes."""
    extra: Mapping[str, Any] | None = None
    """More fields of a request, as the server knows them."""
    schema: Literal["auto", "always", "never"] = "auto"
    """Of answers in JSON, sent as response_format: always, never, or auto: until the server refuses
    it (`llm.roles`)."""


@dataclass(frozen=True)
class LLMSettings:
    """The roles besides the agent. One is given to a model with, for instance,
    llm.analyst.by=endpoint llm.shared.base_url=http://127.0.0.1:8000/v1 llm.shared.model=NAME."""

    user: RoleSettings = RoleSettings(max_tokens=512)
    """The simulated user of tau2 and the official ToolSandbox."""
    analyst: RoleSettings = RoleSettings(temperature=0.7, max_tokens=4096)
    """Finds and labels the capabilities that are missing."""
    generator: RoleSettings = RoleSettings(temperature=0.7, max_tokens=8192)
    """Writes training environments."""
    reflector: RoleSettings = RoleSettings(temperature=1.0, max_tokens=1024)
    """Writes GEPA's prompts."""
    judge: RoleSettings = RoleSettings(max_tokens=512)
    """env=recorded: judges the items of checklists. program: the items' own conditions."""
    annotator: RoleSettings = RoleSettings(max_tokens=8192)
    """Writes checklists for recorded dialogues (examples/annotate.py)."""
    simulator: RoleSettings = RoleSettings(max_tokens=1024, tries=2)
    """env=recorded: answers calls that no recording answers; program: the real environment, or an
    error."""
    shared: SharedSettings = SharedSettings()
    """What all roles have unless they say otherwise."""

    @property
    def roles(self) -> dict[str, RoleSettings]:
        return {name: role for name, role in vars(self).items() if name != "shared"}

    def with_shared(self) -> LLMSettings:
        """With what is shared where a role has no address, model or key of its own."""
        shared = vars(self.shared)
        roles: dict[str, Any] = {
            name: replace(role, **{k: v for k, v in shared.items() if vars(role)[k] is None})
            for name, role in self.roles.items()
        }
        return replace(self, **roles)
