"""Tools of the device settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, ToolFault
from trace_bench.envs.toolsandbox.tools.spec import ToolSpec, required, tool


@dataclass(frozen=True)
class Switch:
    """A setting that is on or off: `name` in its tools' names, `title` in texts, `column` of the
    database."""

    name: str
    title: str
    column: str

    @property
    def words(self) -> str:
        """What the user calls it."""
        return self.name.replace("_", " ")

    def report(self, on: bool) -> str:
        return f"{self.title} is {'on' if on else 'off'}"


SWITCHES: Mapping[str, Switch] = MappingProxyType(
    {
        "wifi": Switch("wifi", "Wifi", "wifi"),
        "cellular": Switch("cellular_service", "Cellular service", "cellular"),
        "location": Switch("location_service", "Location service", "location_service"),
        "low_battery": Switch("low_battery_mode", "Low battery mode", "low_battery_mode"),
    }
)
_LOW = SWITCHES["low_battery"].column
_DEPENDENT = ("cellular", "wifi", "location_service")


def current_location(world: Databases) -> tuple[float, float]:
    """Latitude and longitude in degrees; PermissionError while location service is off."""
    setting = world.setting
    if not setting["location_service"]:
        raise ToolFault("PermissionError", "Location service is off")
    return setting["latitude"], setting["longitude"]


def require_wifi(world: Databases) -> None:
    """ToolFault ConnectionError while wifi is off. For tools with a web service behind them."""
    if not world.setting["wifi"]:
        raise ToolFault("ConnectionError", "Wifi is off")


def _setter(switch: Switch) -> ToolSpec:
    def set_status(world: Databases, on: bool) -> None:
        setting = world.setting
        if on and switch.column in _DEPENDENT and setting[_LOW]:
            raise ToolFault("PermissionError", "Low battery mode is on")
        if setting[switch.column] == on:
            raise ToolFault("ValueError", switch.report(on).replace(" is ", " is already "))
        changes = {switch.column: on}
        if switch.column == _LOW and on:
            changes.update(dict.fromkeys(_DEPENDENT, False))
        world.update("SETTING", setting["device_id"], changes)

    said = f"Switch {switch.words} on or off."
    if switch.column == _LOW:
        said += " On also switches off cellular, wifi and location."
    on = required("on", "boolean", "true switches it on, false switches it off")
    return tool("setting", said, on, name=f"set_{switch.name}_status")(set_status)


def _getter(switch: Switch) -> ToolSpec:
    def get_status(world: Databases) -> bool:
        return bool(world.setting[switch.column])

    said = f"Whether {switch.words} is on."
    return tool("setting", said, name=f"get_{switch.name}_status")(get_status)


@tool("setting", "Latitude and longitude of the device.")
def get_current_location(world: Databases) -> dict[str, Any]:
    latitude, longitude = current_location(world)
    return {"latitude": latitude, "longitude": longitude}


TOOLS = (*map(_setter, SWITCHES.values()), *map(_getter, SWITCHES.values()), get_current_location)
