"""Where the product's parts are reached, and the key that opens Core."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from task.errors import SettingsError
from task.settings import Settings
from task.settings.installation import installation_secret

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  where a server on every address is reached


def core_is_ours(settings: Settings) -> bool:
    """Whether Core is the local one: it is unless `DIAL_ENDPOINT` names another."""
    return "dial_endpoint" not in settings.model_fields_set


def agent_address(settings: Settings) -> str:
    """Where this machine reaches the agent."""
    return base_url(settings.host, settings.port)


def core_address(settings: Settings) -> str:
    """`DIAL_ENDPOINT` where it is set, else local Core's address."""
    return base_url(settings.core.host, settings.core_port) if core_is_ours(settings) else settings.dial_endpoint


def base_url(host: str, port: int) -> str:
    """The address at which a server that listens on `host` is reached from this machine."""
    reached = ANY_ADDRESS.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def local_core_key(settings: Settings) -> str:
    """`DIAL_API_KEY` where it is set, else this installation's random key.

    Raises:
        SettingsError: the data folder cannot be used.
    """
    if settings.dial_api_key is not None:
        return settings.dial_api_key.get_secret_value()
    return installation_secret(settings.data_dir / "core.key")


def key_for(settings: Settings, address: str) -> str:
    """The key for the Core at `address`; this installation's own is for this machine's Core only.

    Raises:
        SettingsError: another machine's Core and no key for it, or the data folder cannot be used.
    """
    if settings.dial_api_key is None and not is_loopback(address):
        raise SettingsError(f"DIAL_API_KEY is not set, and {address} is not this machine; set the key it gave you.")
    return local_core_key(settings)


def is_loopback(address: str) -> bool:
    """Whether the address is this machine's."""
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
