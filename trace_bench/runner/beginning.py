"""The base agent of a run: the bare model, or the agent of an earlier run (the setting `agent`),
whose adapters are copied, so that the earlier run's folder may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trace_bench.core.beginning import WEIGHTS, Beginning, adapter_hash, as_json, read_beginning
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import ContinuesAdapters, MethodPlan, Need, ShowsState, Trainer
from trace_bench.core.run_files import BEGINNING
from trace_bench.core.store import disk_errors, read_bytes, replacing, write_bytes, write_json
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.routing.router import AT_SERVERS
from trace_bench.settings.schema import Settings
from trace_bench.trainers.record import start_of

STATES = Need(
    "policy",
    ShowsState,
    "docs/routing.md",
    f"The router of the `agent` that the run begins with reads hidden states. {AT_SERVERS}",
)


def base_agent(model: str, found: Beginning | None, folder: Path) -> AgentSpec:
    """The base agent on the model, with its adapters in the run's folder. Its version names its
    content. Raises UserError if an adapter has changed since it was looked at."""
    if found is None:
        return AgentSpec(model=model)
    adapters = tuple(_copy(adapter, folder / "adapters") for adapter in found.agent.adapters)
    agent = replace(found.agent, adapters=adapters)
    write_json(folder / BEGINNING, as_json(replace(found, agent=agent)))
    return replace(agent, model=model, version=f"start-{found.sha256}")


def beginning_of(settings: Settings) -> Beginning | None:
    """What the run begins with; None for the bare model."""
    return None if settings.agent is None else read_beginning(settings.agent)


def check_beginning(
    found: Beginning | None,
    plan: MethodPlan,
    trainer: Trainer,
    *,
    scripted: bool,
    weights: str | None,
) -> None:
    """Raises UserError for an agent that this run cannot begin with. `scripted`: the policy has no
    weights; `weights`: the hash of this run's base model, None if unknown."""
    if found is None:
        return
    if scripted:
        raise UserError(
            "agent=... needs a policy that runs a model; a scripted one acts the same whatever "
            "the agent is. Change `policy` to local or openai, or leave `agent` out."
        )
    if None not in (found.weights, weights) and found.weights != weights:
        raise UserError(
            f"the agent was made of a model with other weights ({found.weights}) than this run's "
            f"({weights}). Change `model` or `agent`."
        )
    start = start_of(found.agent) if plan.trains else None
    if start is None:
        return
    if not isinstance(trainer, ContinuesAdapters):
        raise UserError(
            f"the agent has the adapter {start.name}, and {type(trainer).__name__} does not train "
            "on from one (`ContinuesAdapters`: check_start, see docs/trainers.md). Change "
            "`trainer` or `agent`."
        )
    trainer.check_start(start)


def with_beginning(plan: MethodPlan, found: Beginning | None) -> MethodPlan:
    """The plan with what the evaluation of the beginning's own adapters and router needs."""
    if found is None:
        return plan
    kind = (found.agent.router or {}).get("kind")
    adapters = max(plan.adapters, len(found.agent.adapters))
    needs = (*plan.needs, STATES) if kind == "classifier" else plan.needs
    routed = plan.routed or kind in ("zero_shot", "both")
    return replace(plan, adapters=adapters, routed=routed, needs=needs)


def _copy(adapter: AdapterRef, folder: Path) -> AdapterRef:
    """The adapter's files in the folder of its name and version; written once, whole or not."""
    stem, _, version = adapter.name.partition("@")
    target = folder / stem / version
    own = replace(adapter, path=str(target))
    expected = stem.rpartition("-")[2]
    if target.is_dir() and adapter_hash(own).startswith(expected):
        return own
    with disk_errors(target), replacing(target) as building:
        for name in WEIGHTS:
            write_bytes(building / name, read_bytes(Path(adapter.path) / name))
        if not adapter_hash(replace(adapter, path=str(building))).startswith(expected):
            raise UserError(
                f"the adapter {adapter.path} was changed while it was copied. Run the command "
                "again when nothing writes it any more, or change `agent`."
            )
    return own
