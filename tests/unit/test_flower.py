"""Flower is open to nobody without a password, wherever it is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from carbonq import config
from carbonq.errors import ConfigError
from workers import flower

ROOT = Path(__file__).parents[2]


def test_without_a_password_it_does_not_start() -> None:
    settings = config.load(broker_url="redis://127.0.0.1:1/0")
    with pytest.raises(ConfigError, match="CARBONQ_FLOWER_PASSWORD"):
        flower.main(settings)


def test_the_fleet_gives_it_one() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    given = services["flower"]["environment"]["CARBONQ_FLOWER_PASSWORD_FILE"]
    assert given == "/run/secrets/flower_password" and "flower_password" in services["flower"]["secrets"]
    assert "keep flower_password" in (ROOT / "ops/docker/make-secrets").read_text(encoding="utf-8")
