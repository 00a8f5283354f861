from __future__ import annotations

import socket

import pytest

from carbonq.embedded import ports
from carbonq.errors import ConfigError


def test_zero_takes_any_free_port() -> None:
    assert ports.choose("127.0.0.1", 0, what="the API", setting="CARBONQ_PORT") > 0


def test_a_used_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on 127.0.0.1 is already in use.*CARBONQ_PORT"):
            ports.choose("127.0.0.1", port, what="the API", setting="CARBONQ_PORT")


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the API cannot listen on 192\.0\.2\.1"):
        ports.choose("192.0.2.1", 0, what="the API", setting="CARBONQ_PORT")
