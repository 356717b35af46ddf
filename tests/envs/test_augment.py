from __future__ import annotations

import pytest

from trace_bench.envs.toolsandbox.tools.augment import catalog, offer

TOOLS = ("search_stock", "get_wifi_status")


def _names(augmentation: str, seed: int = 1) -> list[str]:
    schemas, _ = offer(TOOLS, augmentation, seed)
    return [schema["function"]["name"] for schema in schemas]


@pytest.mark.parametrize(("augmentation", "extra"), [("distractors_3", 3), ("distractors_10", 10)])
def test_distractors_come_from_the_same_modules_first(augmentation: str, extra: int) -> None:
    names = _names(augmentation)
    assert set(TOOLS) < set(names) and len(names) == len(set(names)) == 2 + extra
    assert {catalog()[name].module for name in names} == {"search", "setting"}


def test_the_order_depends_on_the_seed_only() -> None:
    assert _names("all_tools", 1) == _names("all_tools", 1) != _names("all_tools", 2)


def test_scrambled_names_lead_back_to_the_tools() -> None:
    schemas, names = offer(TOOLS, "scrambled_names", 1)
    shown = [schema["function"]["name"] for schema in schemas]
    assert set(shown) == set(names) and len(shown) == 5
    ours = {alias: name for alias, name in names.items() if name in TOOLS}
    assert ours == {"setting_4": "get_wifi_status", "search_3": "search_stock"}
    for schema in schemas:
        own = catalog()[names[schema["function"]["name"]]].schema["function"]
        assert {**own, "name": schema["function"]["name"]} == schema["function"]


def test_scrambled_descriptions_are_empty() -> None:
    for schema in offer(TOOLS, "scrambled_descriptions", 1)[0]:
        own = catalog()[schema["function"]["name"]].schema["function"]
        assert schema["function"] == {**own, "description": ""}


@pytest.mark.parametrize(("gone", "left"), [("description", "type"), ("type", "description")])
def test_scrambled_arguments(gone: str, left: str) -> None:
    for schema in offer(TOOLS, f"scrambled_arg_{gone}s", 1)[0]:
        function = schema["function"]
        own = catalog()[function["name"]].schema["function"]
        assert function["parameters"]["required"] == own["parameters"]["required"]
        assert function["description"] == own["description"]
        for name, about in own["parameters"]["properties"].items():
            assert function["parameters"]["properties"][name] == {left: about[left]}, gone
