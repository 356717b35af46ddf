"""ToolSandbox's augmentations of the agent's tools, shared by both of its suites."""

from __future__ import annotations

from typing import Literal

Augmentation = Literal[
    "none",
    "distractors_3",
    "distractors_10",
    "all_tools",
    "scrambled_names",
    "scrambled_descriptions",
    "scrambled_arg_descriptions",
    "scrambled_arg_types",
]
