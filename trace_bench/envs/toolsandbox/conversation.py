"""The message log of an episode: the SANDBOX database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SYSTEM = "SYSTEM"
USER = "USER"
AGENT = "AGENT"
ENVIRONMENT = "EXECUTION_ENVIRONMENT"
ROLES = (SYSTEM, USER, AGENT, ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class Entry:
    """One message. `snapshot` numbers the state of the databases after it. `trace` stands on the
    result of a call that succeeded: {"name", "arguments"}."""

    sender: str
    recipient: str
    content: str
    snapshot: int
    trace: Mapping[str, Any] | None = None
