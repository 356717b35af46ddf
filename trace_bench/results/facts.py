"""What a suite says about itself, and the models in roles that its scores depend on, as one line:
it stands with every table, and runs that differ in it are not compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN = ("model", "temperature", "seed")  # of a role that a model plays


def models(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The models in roles, from flat settings ("llm.user.model"): {role: {model, ...}}."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        group, _, rest = key.partition(".")
        role, _, name = rest.partition(".")
        if group == "llm" and name in SHOWN:
            found.setdefault(role, {})[name] = value
    return found


def line(about: Mapping[str, Any], played: Mapping[str, Mapping[str, Any]]) -> str:
    """The facts as `name: value` and, behind a fact that is named like a role, the model that plays
    it; "" for a suite that says nothing. `played`: see `models`."""
    parts = []
    for name, value in about.items():
        if value in ("", None, [], {}):
            continue
        text = f"{name.replace('_', ' ')}: {value}"
        if name in played:
            model = played[name]
            text += " (" + ", ".join(f"{k} {model[k]}" for k in SHOWN if k in model) + ")"
        parts.append(text)
    return "; ".join(parts)
