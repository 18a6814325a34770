"""A port in use is one sentence with the process and the setting."""

import os
import socket

import pytest

from task.commands.addresses import free_port, holder_of, usable_port
from task.errors import SettingsError


def test_a_port_in_use_names_the_process_and_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError) as caught:
            usable_port("127.0.0.1", port, "--port", "AGENT_PORT")
    message = str(caught.value)
    assert message.startswith(f"Port {port} is in use by ")
    assert f"(process {os.getpid()})" in message
    assert message.endswith("; choose another with --port or AGENT_PORT.")


def test_a_free_port_has_no_holder() -> None:
    port = free_port("127.0.0.1")
    usable_port("127.0.0.1", port, "--port", "AGENT_PORT")
    assert holder_of(port) is None


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"Nothing can listen on 192\.0\.2\.1"):
        usable_port("192.0.2.1", 5030, "--port", "AGENT_PORT")
