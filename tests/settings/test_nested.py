"""What a name chooses has settings of its own: method.route=gate method.route.share=0.2."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from trace_bench.core.checked import build
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Method, RunContext
from trace_bench.runner.api import _settings
from trace_bench.settings.compose import compose, compose_all
from trace_bench.settings.identity import identity, parts_of
from trace_bench.settings.schema import Settings


@dataclass(frozen=True)
class Classifier:
    name: Literal["classifier", "soft"] = "classifier"
    others: float = 0.35


@dataclass(frozen=True)
class Gate:
    name: Literal["gate"] = "gate"
    share: float = 0.15
    others: float = 0.5


@dataclass(frozen=True)
class Nearest:
    name: Literal["nearest"] = "nearest"
    top_k: int = 5


@dataclass(frozen=True)
class ToySettings:
    route: Classifier | Gate | Nearest = Classifier(others=0.2)
    second: Gate | None = None


class Toy(Method):
    def __init__(self, settings: ToySettings) -> None:
        self.settings = settings

    def fit(self, base: Any, tasks: Any, lab: Any) -> Any:
        return base


TOY = ["method=custom", f"method.factory={__name__}:Toy", "policy=idle"]


def made(settings: Settings) -> ToySettings:
    chosen: ToySettings = parts_of(settings)["method"].make(RunContext()).settings
    return chosen


@pytest.mark.parametrize(
    ("overrides", "route"),
    [
        ([], Classifier(others=0.2)),
        (["route=soft"], Classifier("soft", 0.2)),
        (["route=gate"], Gate()),
        (["route=gate", "route.share=0.3"], Gate(share=0.3)),
        (["route.share=0.3", "route=gate"], Gate(share=0.3)),
        (["route.others=0.1"], Classifier(others=0.1)),
        (["route.name=nearest", "route.top_k=3"], Nearest(top_k=3)),
        (["route={name: gate, share: 0.3}"], Gate(share=0.3)),
    ],
)
def test_a_name_chooses_what_has_settings_of_its_own(overrides: list[str], route: object) -> None:
    settings = compose([*TOY, *(f"method.options.{o}" for o in overrides)])
    assert made(settings).route == route
    plain = parts_of(settings)["method"].options
    assert build(ToySettings, plain, "method").route == route


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"route": "gat"}, ["unknown value 'gat'", "soft, gate, near", "`method.route`"]),
        ({"route": {"name": 3}}, ["unknown value 3"]),
        ({"route": {"name": "nearest", "share": 0.1}},
         ["`method.route.share` is a setting of method.route=gate", "allowed there: top_k"]),
        ({"route": {"name": "nearest", "others": 0.1}}, ["route=classifier or soft or gate"]),
        ({"route": {"shares": 0.1}}, ["unknown key 'method.route.shares'", "others"]),
        ({"route": {"name": "gate", "share": "much"}}, ["method.route.share='much'", "a number"]),
        ({"route": None}, ["method.route"]),
    ],
)  # fmt: skip
def test_what_belongs_to_another_choice_is_refused(given: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        build(ToySettings, given, "method")
    assert all(word in str(caught.value) for word in words), caught.value


def test_one_that_may_be_missing() -> None:
    assert build(ToySettings, {"second": None}).second is None
    assert build(ToySettings, {"second": "gate"}).second == Gate()


def test_in_python_and_in_a_sweep() -> None:
    given = {"method": Toy, "policy": "idle", "method__options__route": "gate",
             "method__options__route__share": 0.4}  # fmt: skip
    assert made(_settings([], given, None)).route == Gate(share=0.4)
    runs = [[*TOY, f"method.options.route={name}"] for name in ("gate", "soft")]
    one, two = compose_all(runs)
    assert (made(one).route, made(two).route) == (Gate(), Classifier("soft", 0.2))
    known = [identity(s, parts_of(s))["method"] for s in (one, two)]
    assert known[0]["route"] == {"name": "gate", "share": 0.15, "others": 0.5} != known[1]["route"]


def test_in_a_settings_file(tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    text = f"name: toy\nfactory: {__name__}:Toy\nroute: gate\n"
    (tmp_path / "method" / "toy.yaml").write_text(text)
    assert made(compose(["method=toy", "policy=idle"], tmp_path)).route == Gate()


def test_a_field_whose_type_the_module_does_not_have_is_refused() -> None:
    def settings(name: str, text: str) -> type:
        space = {"__name__": name, "Base": ToySettings, "dataclass": dataclass}
        module = types.ModuleType(name)
        sys.modules[name] = module
        vars(module).update(space)
        exec(f"from __future__ import annotations\n@dataclass(frozen=True)\n{text}", vars(module))
        return cast(type, vars(module)["Mine"])

    inherited = settings("mine_good", "class Mine(Base):\n    size: int = 3")
    assert build(inherited, {"route": "gate"}).route == Gate()
    refused = settings("mine_bad", "class Mine(Base):\n    gate: Gate = None")
    with pytest.raises(UserError, match=r"mine_bad\.Mine\.gate is annotated 'Gate'.*Change the"):
        build(refused, {"gate": {"share": 0.2}})
