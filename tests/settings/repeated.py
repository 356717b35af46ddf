"""The keys in conf/ that repeat a default."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from trace_bench.settings.choices import fill

ROOT = Path(__file__).resolve().parents[2]


def repeated_keys() -> tuple[list[str], int]:
    """(`file: key` of those in conf/ whose value would be the same without them, how many keys
    there are)."""
    repeated, count = [], 0
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        data = yaml.safe_load(text) or {}
        group = path.parent.name
        settings = leaves({k: v for k, v in data.items() if k != "hydra"})
        inner = group not in ("conf", "experiment") and "@package _global_" not in text
        without = composed_without(path, text, data)
        for key, value in settings:
            count += 1
            if OmegaConf.select(without, f"{group}.{key}" if inner else key, default=...) == value:
                repeated.append(f"{path.relative_to(ROOT)}: {key}")
    return repeated, count


def composed_without(path: Path, text: str, data: Mapping[str, Any]) -> DictConfig:
    """What a run has that chooses the file, if the file had no keys of its own."""
    kept = yaml.safe_dump({k: v for k, v in data.items() if k in ("defaults", "hydra")})
    head = "# @package _global_\n" if "@package _global_" in text else ""
    chosen = [] if path.stem == "config" else [f"{path.parent.name}={path.stem}"]
    with tempfile.TemporaryDirectory() as place:
        conf = shutil.copytree(ROOT / "conf", Path(place, "conf"))
        (conf / path.relative_to(ROOT / "conf")).write_text(head + kept)
        with initialize_config_dir(str(conf), version_base="1.3"):
            fill()
            return compose("config", chosen)


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that holds no further keys, with dots, and its value."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif prefix or key != "defaults":
            yield prefix + key, value
