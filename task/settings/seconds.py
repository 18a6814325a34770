"""Refuse a time limit that a limit around it keeps from ever being reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from task.errors import SettingsError
from task.settings.sources import Setting, Sources, settings_of

if TYPE_CHECKING:
    from task.settings.tree import Settings

_RUN, _TOOL = "limits.run_seconds", "limits.tool_seconds"
_OF_ONE_TOOL = ("interpreter.seconds", "rag.seconds", "deployments.image_seconds", "limits.reader_seconds")
_OF_LISTED_TOOLS = ("mcp_servers", "deployments.tools")


@dataclass(frozen=True, slots=True)
class _Limit:
    setting: Setting
    seconds: float
    place: str = ""  # in the setting's list


def check_seconds(settings: Settings, sources: Sources, prefix: str) -> None:
    """Check what a source gives; defaults give way to the limit of every call and to that of the run.

    Raises:
        SettingsError: a limit is above the one around it.
    """
    known = {item.key: item for item in settings_of(type(settings), prefix)}
    around = _Limit(known[_RUN], settings.limits.run_seconds)
    if settings.limits.tool_seconds is not None:
        every_call = _Limit(known[_TOOL], settings.limits.tool_seconds)
        _check(every_call, around, sources)
        around = every_call
    for limit in _given(settings, known):
        _check(limit, around, sources)


def _given(settings: Settings, known: dict[str, Setting]) -> Iterator[_Limit]:
    for setting in (known[key] for key in _OF_ONE_TOOL):
        if setting.given_in(settings):
            yield _Limit(setting, _value(settings, setting))
    for setting in (known[key] for key in _OF_LISTED_TOOLS):
        for number, item in enumerate(_value(settings, setting)):
            if "seconds" in item.model_fields_set:
                yield _Limit(setting, item.seconds, f"[{number}].seconds")


def _value(settings: Settings, setting: Setting) -> Any:
    found: Any = settings
    for name in setting.path:
        found = getattr(found, name)
    return found


def _check(limit: _Limit, around: _Limit, sources: Sources) -> None:
    if limit.seconds > around.seconds:
        inside = f" {sources.named(limit.setting)}{limit.place}:" if limit.place else ""
        raise SettingsError(
            f"{sources.where(limit.setting)}:{inside} {limit.seconds:g} seconds are never reached, because "
            f"{around.setting.variable} is {around.seconds:g}. Lower the one or raise the other."
        )
