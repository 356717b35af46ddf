"""What models in roles cost for each checklist item."""

from __future__ import annotations

from collections.abc import Mapping

from trace_bench.core.run_files import PER_ITEM

ROLES = ("judge", "annotator", "simulator")
"""The roles that models play for the sake of checklists."""


def per_item(usage: Mapping[str, Mapping[str, int]], items: int) -> dict[str, dict[str, float]]:
    """Requests and tokens for each of `items` checklist items, by role; what was spent on episodes
    that were then lost is in it. {} without items, and no entry for a role that was not asked."""
    asked = [role for role in ROLES if items and usage.get(role, {}).get("requests")]
    return {role: {k: round(usage[role][k] / items, 4) for k in PER_ITEM} for role in asked}


def in_words(cost: Mapping[str, float], items: int) -> str:
    """A role's entry of `per_item` as a part of a line."""
    requests, prompt, completion = (cost[name] for name in PER_ITEM)
    return (
        f"for each of {items} checklist items {requests:.2f} requests, {prompt:.0f} prompt and "
        f"{completion:.0f} completion tokens"
    )
