"""Makes the sums of adapters that a router chooses usable, each on its first use.

A sum with one weight for each adapter is written as an adapter: there are few of them, since
weights are rounded, and every policy runs them at the cost of one adapter. With weights for each
block almost every conversation has a sum of its own, so a policy that can do without files
(`PlaysSums`) receives only the weights.
"""

from __future__ import annotations

from dataclasses import replace

from trace_bench.core.protocols import PlaysSums, Policy
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.routing.merge import Mixture, merge


class Sums:
    """The sums of `agent`'s adapters, run by `policy`, which has loaded the agent."""

    def __init__(self, policy: Policy, agent: AgentSpec) -> None:
        self._policy, self._agent = policy, agent
        self._merged: dict[str, AdapterRef] = {}

    def name_of(self, choice: str | Mixture | None) -> str | None:
        """The name under which the policy runs a router's choice from now on. Raises UserError
        for adapters that cannot be read."""
        if not isinstance(choice, Mixture):
            return choice
        if choice.blocks and isinstance(self._policy, PlaysSums):
            self._policy.add_sum(choice.name, dict(choice.parts))
        elif choice.name not in self._merged:
            merged = merge(choice, self._agent.adapters)
            every = (*self._agent.adapters, *self._merged.values(), merged)
            self._policy.load(replace(self._agent, adapters=every))
            self._merged[choice.name] = merged
        return choice.name
