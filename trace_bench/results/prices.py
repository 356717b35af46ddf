"""What runs cost in money, by prices from a file (`tables --prices cost.yaml`). Nothing is guessed:
what was used and has no price is named.

    currency: USD
    gpu_hour: 2.5        # of one GPU
    gpus: 8              # that a run holds from its start to its end
    cpu_hour: 0.04       # of one CPU
    cpus: 16             # likewise
    tokens:              # by role, per million; `policy` is the agent, where servers play it
      user: {prompt: 0.15, completion: 0.6}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.core.checked import build, number
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.summary import read_settings
from trace_bench.results.compare import Cell, Cells, by_cell
from trace_bench.results.records import Record
from trace_bench.results.statistics import mean
from trace_bench.results.table import Table

ROLES = (
    "policy", "user", "analyst", "generator", "reflector", "judge", "annotator", "simulator"
)  # fmt: skip


@dataclass(frozen=True)
class TokenPrice:
    prompt: float = field(metadata=number(0))
    completion: float = field(metadata=number(0))


@dataclass(frozen=True)
class Prices:
    """Prices of hours, with how many GPUs and CPUs a run holds, and of tokens by role."""

    currency: str = "USD"
    gpu_hour: float | None = field(default=None, metadata=number(0))
    gpus: int | None = field(default=None, metadata=number(1))
    cpu_hour: float | None = field(default=None, metadata=number(0))
    cpus: int | None = field(default=None, metadata=number(1))
    tokens: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for price, count in (("gpu_hour", "gpus"), ("cpu_hour", "cpus")):
            if (getattr(self, price) is None) != (getattr(self, count) is None):
                raise UserError(
                    f"the prices have one of {price} and {count} only; an hour's price needs the "
                    "number that a run holds. Set both, or none."
                )
        for role in self.tokens:
            if role not in ROLES:
                raise unknown("role", role, ROLES, f"tokens.{role}")


def read_prices(path: Path) -> Prices:
    """The prices in a YAML file. Raises UserError for a file that holds anything else."""
    if not path.exists():
        raise UserError(f"--prices {path} does not exist; name a YAML file of prices.")
    found = build(Prices, read_settings(path))
    tokens = {role: build(TokenPrice, p, f"tokens.{role}") for role, p in found.tokens.items()}
    return Prices(**{**vars(found), "tokens": tokens})


@dataclass(frozen=True)
class Bill:
    """Money by part of a run; `unpriced`: what was used and has no price, in words."""

    parts: Mapping[str, float]
    unpriced: tuple[str, ...]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def bill(record: Record, prices: Prices) -> Bill:
    """What a whole run cost, held-out evaluation and yardsticks included."""
    parts: dict[str, float] = {}
    unpriced = []
    total, settings = record.wall_s.get("total"), record.settings
    machines = (("GPU", prices.gpu_hour, prices.gpus), ("CPU", prices.cpu_hour, prices.cpus))
    for name, price, count in machines:
        if price is None or count is None:
            devices = (settings.get("policy.device"), settings.get("trainer.device"))
            if name == "CPU" or any(str(device).startswith("cuda") for device in devices):
                unpriced.append(f"{name} hours")
        elif total is None:
            unpriced.append(f"{name} hours (not recorded)")
        else:
            parts[name] = total / 3600 * count * price
    for role, used in record.usage.items():
        counts = {name: used.get(f"{name}_tokens", 0) for name in ("prompt", "completion")}
        if price_of := prices.tokens.get(role):
            money = sum(count * getattr(price_of, name) for name, count in counts.items()) / 1e6
            parts["tokens"] = parts.get("tokens", 0.0) + money
        elif any(counts.values()):
            unpriced.append(f"tokens of {role}")
    asked = {key.split(".")[1] for key in settings if key.startswith("llm.")}
    unpriced += [f"tokens of {r} (not recorded)" for r in sorted(asked - record.usage.keys())
                 if settings.get(f"llm.{r}.by") == "endpoint"]  # fmt: skip
    return Bill(parts, tuple(unpriced))


def table(found: Cells, prices: Prices, caption: str) -> Table:
    """Money per run and per point of success over the run's own base agent."""

    def row(cell: Cell) -> Iterator[tuple[str, ...]]:
        bills = [bill(r, prices) for r in cell.records]
        least = "at least " if any(b.unpriced for b in bills) else ""
        total = mean([b.total for b in bills])
        points = 100 * (cell.value - cell.base.value)
        yield (
            f"{len(bills)}",
            f"{cell.mean(lambda r: r.wall_s.get('total', 0.0)) / 3600:.3f}",
            *(_part(bills, name) for name in ("GPU", "CPU", "tokens")),
            f"{least}{_money(total)}",
            f"{points:+.1f}",
            f"{least}{_money(total / points)}" if points > 0 else "no gain",
        )

    records = [r for cell in found.values() for r in cell.records]
    unpriced = {text for r in records for text in bill(r, prices).unpriced}
    text = (
        f"Money ({prices.currency}) per run and per point of success (0.01) gained over the base "
        "agent of the run's own evaluation, means over seeds. A run is counted whole, with its "
        "held-out evaluation and yardsticks; hours are wall time, of "
        f"{prices.gpus or 'no priced'} GPUs and {prices.cpus or 'no priced'} CPUs. Tokens of a "
        "`policy` are those since the run was last started. "
        f"Used and unpriced: {'; '.join(sorted(unpriced)) or 'nothing'}. {caption}"
    )
    header = ("runs", "hours", "GPU", "CPU", "tokens", "per run", "points", "per point")
    return by_cell("money", text, header, found, row)


def _part(bills: Sequence[Bill], name: str) -> str:
    """ "" where nothing of the kind was used or has a price."""
    if any(name in b.parts for b in bills):
        return _money(mean([b.parts.get(name, 0.0) for b in bills]))
    return "unpriced" if any(t.startswith(name) for b in bills for t in b.unpriced) else ""


def _money(value: float) -> str:
    return f"{value:.2f}" if value >= 1 or not value else f"{value:.2g}"
