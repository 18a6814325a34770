"""Which component of a Dapr sidecar answers, and what is wrong with the sidecar."""

from __future__ import annotations

from dataclasses import dataclass

from task.errors import ProviderError
from task.product.backends import dapr_server
from task.settings import Settings


@dataclass(frozen=True, slots=True)
class DaprChoice:
    """The component and why it is used; `described` is what the sidecar reports, `fault` what is wrong with it."""

    name: str
    reason: str
    described: str = ""
    fault: str = ""


async def chosen_of_dapr(settings: Settings) -> DaprChoice:
    """The component of the settings' sidecar.

    Raises:
        SettingsError: Dapr's client is not installed, or the sidecar's address is none.
    """
    once = settings.llm.model_copy(update={"attempts": 1})
    server = dapr_server(settings.model_copy(update={"llm": once}))
    name, reason = settings.dapr.component or settings.deployment_name, f"AGENT_BACKEND asks for Dapr at {server.place}"
    try:
        sidecar = await server.sidecar()
        name = await server.component(settings.deployment_name)
        kind = sidecar.kind(name, server.place)
    except ProviderError as error:
        return DaprChoice(name, reason, fault=error.display_message or str(error))
    finally:
        await server.close()
    return DaprChoice(name, reason, f"version {sidecar.version or 'unknown'} at {server.place}; {name}: {kind}")
