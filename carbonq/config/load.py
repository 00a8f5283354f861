"""Read the settings, and hand them on to a child process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from carbonq.config import otel
from carbonq.config.given import Sources, reveal
from carbonq.config.settings import Settings
from carbonq.errors import ConfigError


def given(**overrides: Any) -> Sources:
    """Read what this process was given, without checking more than names. Raises ConfigError."""
    return Sources(overrides)


def load(**overrides: Any) -> Settings:
    """Read the settings. Raises ConfigError naming the setting, the value and the limit.

    Without any region the two demo regions are taken: processes of an installation use ``wiring.join`` instead.
    """
    return Sources(overrides).read().settings


def environment(settings: Settings) -> dict[str, str]:
    """Return the settings that were given, as the environment of a child process; holds secrets in the clear."""
    values: dict[str, str] = {}
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            values[f"CARBONQ_{name.upper()}"] = value.get_secret_value()
        elif value is not None:
            plain = reveal(value)
            values[f"CARBONQ_{name.upper()}"] = plain if isinstance(plain, str) else json.dumps(plain)
    return values


def check_exporter() -> None:
    """Raise ConfigError where OpenTelemetry's variables name a way on which no trace could arrive."""
    trouble = otel.trouble(os.environ)
    if trouble is not None:
        raise ConfigError(trouble)


def isolate(path: Path) -> None:
    """Make ``path`` the only settings of this process and its children: the user's own play no part."""
    for name in [name for name in os.environ if name.startswith("CARBONQ_") or name in otel.ASKING]:
        del os.environ[name]
    os.environ["CARBONQ_CONFIG"] = str(path)
