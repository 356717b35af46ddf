"""The committed records of runs of 0.1.0, in the form that records have since: settings that they
leave out at their defaults, settings of a route beside each other, and settings that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULTS = {
    "accounting": "strict",
    "evaluation.retries": 1,
    "policy.thinking": None,
    "policy.max_seconds": None,
}
BY_SERVERS = {"policy.thoughts": "own", "policy.parse": "server"}
OF_ALGORITHMS = {
    "trainer.algorithm.name": "grpo",
    "trainer.algorithm.kl": 0.0,
    "trainer.algorithm.truncate": None,
}
"""The values of settings in runs that do not name them; the latter of trainers that have one."""

_ONE, _SUM = ("retrieval", "both"), ("classifier", "soft", "turn", "gate")
_OF_ROUTES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "route_share": ("share", ("zero_shot", "both")),
    "route_examples": ("examples", _ONE),
    "route_tools": ("tools", _ONE),
    "route_top_k": ("top_k", _ONE),
    "route_threshold": ("threshold", _ONE),
    "route_others": ("others", _SUM),
    "route_weight": ("weight", ("linear",)),
    "route_density": ("density", ("ties",)),
    "gate_share": ("share", ("gate",)),
    "gate_rate": ("rate", ("gate",)),
    "gate_warm": ("warm", ("gate",)),
    "merge_weight": ("weight", ("linear",)),
}
"""The name within the route, and the routes that have it."""
_GONE: Mapping[str, Mapping[str, Any]] = {
    "keep_runs": {
        **{"split": "equal", "trunk_share": 0.0, "target_share": 0.0, "pair_share": 0.0},
        **{"order_by": "delta", "gate": "global", "gate_lock": "prefill", "route_failures": True},
        **{"finish_share": 0.25, "route_l2": 1e-3, "route.l2": 1e-3, "route_contrast": False},
        **{"analysis_ceiling": 0.25, "idle_limit": 0.2, "random_limit": 0.3},
    },
    "synthetic_tasks": {"contrast_share": 0.2},
    "minibatch": {"temperature": 1.0, "merge": False},
    "per_task": {"per_task": 4},
    "holders": {"decay": 1.0},
}
"""Settings and the values that all have by now, by a setting that tells the methods: TRACE and its
kin, those with synthetic tasks, GEPA, fine-tuning on successes, CM2."""


def today(data: Mapping[str, Any]) -> dict[str, Any]:
    """A record, which may be older, in today's form. Raises AttributeError for what is none."""
    method, bracket, marks = str(data.get("method")).partition(" (")
    out = {k: v for k, v in data.items() if k != "usage"}
    if bracket and "marks" not in data:
        out |= {"method": method, "marks": [marks.removesuffix(")")]}
    if "settings" in data:
        out["settings"] = _settings(data["settings"])
    if "method_settings" in data:
        out["method_settings"] = _options(by_name(data["method_settings"]))
    return out


def by_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is chosen by a name stands beside it: {"route": "soft", "route.others": 0.35}."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and "name" in value:
            out |= {key if k == "name" else f"{key}.{k}": v for k, v in value.items()}
        else:
            out[key] = value
    return out


def _settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """All shared settings of a record, by its flat ones."""
    defaults = dict(DEFAULTS)
    if data.get("policy.name") == "openai":
        defaults |= BY_SERVERS
    if "trainer.group_size" in data:
        defaults |= OF_ALGORITHMS
    return {**defaults, **data}


def _options(data: Mapping[str, Any]) -> dict[str, Any]:
    """The method's settings, by those of a record."""
    gone = {k: v for mark in _GONE.keys() & data.keys() for k, v in _GONE[mark].items()}
    out: dict[str, Any] = {}
    for key, value in data.items():
        if key in _OF_ROUTES:
            name, routes = _OF_ROUTES[key]
            if data.get("route") in routes:
                out[f"route.{name}"] = value
        else:
            out[key] = value
    if out.get("route") not in _ONE:
        gone["route.examples"] = 256
    return {key: value for key, value in out.items() if key not in gone or value != gone[key]}
