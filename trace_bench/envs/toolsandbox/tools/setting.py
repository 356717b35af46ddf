"""Tools of the device settings."""

from __future__ import annotations

from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, ToolFault
from trace_bench.envs.toolsandbox.tools.spec import ToolSpec, required, tool

_DEPENDENT = ("cellular", "wifi", "location_service")


def _switch(world: Databases, column: str, on: bool, label: str) -> None:
    setting = world.setting
    if on and column in _DEPENDENT and setting["low_battery_mode"]:
        raise ToolFault("PermissionError", "Low battery mode is on")
    if setting[column] == on:
        raise ToolFault("ValueError", f"{label} is already {'on' if on else 'off'}")
    changes = {column: on}
    if column == "low_battery_mode" and on:
        changes.update(dict.fromkeys(_DEPENDENT, False))
    world.update("SETTING", setting["device_id"], changes)


def set_wifi_status(world: Databases, on: bool) -> None:
    _switch(world, "wifi", on, "Wifi")


def set_cellular_service_status(world: Databases, on: bool) -> None:
    _switch(world, "cellular", on, "Cellular service")


def set_location_service_status(world: Databases, on: bool) -> None:
    _switch(world, "location_service", on, "Location service")


def set_low_battery_mode_status(world: Databases, on: bool) -> None:
    _switch(world, "low_battery_mode", on, "Low battery mode")


def get_wifi_status(world: Databases) -> bool:
    return bool(world.setting["wifi"])


def get_cellular_service_status(world: Databases) -> bool:
    return bool(world.setting["cellular"])


def get_location_service_status(world: Databases) -> bool:
    return bool(world.setting["location_service"])


def get_low_battery_mode_status(world: Databases) -> bool:
    return bool(world.setting["low_battery_mode"])


def get_current_location(world: Databases) -> dict[str, Any]:
    latitude, longitude = current_location(world)
    return {"latitude": latitude, "longitude": longitude}


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


def tools() -> tuple[ToolSpec, ...]:
    on = required("on", "boolean", "true switches it on, false switches it off")
    return (
        tool("setting", set_wifi_status, "Switch wifi on or off.", on),
        tool("setting", set_cellular_service_status, "Switch cellular service on or off.", on),
        tool("setting", set_location_service_status, "Switch location service on or off.", on),
        tool(
            "setting",
            set_low_battery_mode_status,
            "Switch low battery mode on or off. On also switches off cellular, wifi and location.",
            on,
        ),
        tool("setting", get_wifi_status, "Whether wifi is on."),
        tool("setting", get_cellular_service_status, "Whether cellular service is on."),
        tool("setting", get_location_service_status, "Whether location service is on."),
        tool("setting", get_low_battery_mode_status, "Whether low battery mode is on."),
        tool("setting", get_current_location, "Latitude and longitude of the device."),
    )
