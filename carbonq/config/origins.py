"""Where settings come from beside the environment: secrets in files and ``carbonq.toml``."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_settings import PydanticBaseSettingsSource

from carbonq.errors import ConfigError


class SecretFiles(PydanticBaseSettingsSource):
    """``CARBONQ_X_FILE`` names a file that holds the value of a secret ``x``."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Not asked for: everything is read at once."""
        raise LookupError(field_name)

    def __call__(self) -> dict[str, Any]:
        """Return the secrets. Raises ConfigError when a file cannot be read."""
        values: dict[str, Any] = {}
        for name, info in self.settings_cls.model_fields.items():
            path = os.environ.get(f"CARBONQ_{name.upper()}_FILE")
            if path and "SecretStr" in str(info.annotation):
                try:
                    values[name] = Path(path).read_text(encoding="utf-8").strip()
                except OSError as error:
                    raise ConfigError(f"CARBONQ_{name.upper()}_FILE: cannot read {path}: {error.strerror}") from error
        return values


class TomlFile(PydanticBaseSettingsSource):
    """``CARBONQ_CONFIG``, else ``carbonq.toml`` in the working folder."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Not asked for: everything is read at once."""
        raise LookupError(field_name)

    def __call__(self) -> dict[str, Any]:
        """Return what the file says. Raises ConfigError."""
        return read_toml(config_path(), self.settings_cls.model_fields)


def config_path() -> Path | None:
    """Return the settings file in force, if any. Raises ConfigError when CARBONQ_CONFIG names none."""
    named = os.environ.get("CARBONQ_CONFIG")
    if named:
        if not Path(named).is_file():
            raise ConfigError(f"CARBONQ_CONFIG names {named}, which is no file")
        return Path(named)
    return Path("carbonq.toml") if Path("carbonq.toml").is_file() else None


def read_toml(path: Path | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """Read a settings file; unknown top-level names fail with the nearest known one. Raises ConfigError."""
    if path is None:
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for name in values:
        if name not in known:
            raise ConfigError(f"{path}: unknown setting {name!r}{nearest(name, known)}")
    return values


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """Return a hint at the known name that is most like ``name``; empty when none is."""
    match = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""
