"""Read the settings, say where each comes from, and hand them on to a child process."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from carbonq.config import tree
from carbonq.config.origins import config_path, nearest, read_toml
from carbonq.config.settings import Settings
from carbonq.errors import ConfigError


def _check_variables() -> None:
    """Raise ConfigError for a ``CARBONQ_`` variable that is a misspelt setting.

    Others are left alone: schedulers make variables such as CARBONQ_SERVICE_HOST by themselves.
    """
    known = {f"CARBONQ_{name.upper()}" for name in Settings.model_fields}
    known |= {"CARBONQ_CONFIG", *(f"{name}_FILE" for name in known)}
    for variable in sorted(os.environ):
        name = variable.partition("__")[0]
        if not variable.startswith("CARBONQ_") or name in known:
            continue
        match = difflib.get_close_matches(
            name.removeprefix("CARBONQ_"), [one.removeprefix("CARBONQ_") for one in known], n=1, cutoff=0.75
        )
        if match:
            raise ConfigError(f"{variable} is no setting; did you mean CARBONQ_{match[0]}?")


def environment(settings: Settings) -> dict[str, str]:
    """Return the settings that were given, as the environment of a child process; holds secrets in the clear."""
    values: dict[str, str] = {}
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            values[f"CARBONQ_{name.upper()}"] = value.get_secret_value()
        elif value is not None:
            plain = _plain(settings.model_dump(include={name}, exclude_unset=True)[name])
            values[f"CARBONQ_{name.upper()}"] = plain if isinstance(plain, str) else json.dumps(plain)
    return values


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, secrets in the clear."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path | Decimal) else value


def origin(name: str) -> str:
    """Say where the value of a setting comes from: the variable, the file, or ``default``."""
    variable = f"CARBONQ_{name.upper()}"
    set_by = [key for key in sorted(os.environ) if key == variable or key.startswith(f"{variable}__")]
    path = config_path()
    if name in read_toml(path, Settings.model_fields):
        set_by.append(str(path))
    if os.environ.get(f"{variable}_FILE"):
        set_by.insert(0, f"{variable}_FILE")
    return ", ".join(set_by) or "default"


def isolate(path: Path) -> None:
    """Make ``path`` the only settings of this process and its children: the user's own play no part."""
    for name in [name for name in os.environ if name.startswith("CARBONQ_")]:
        del os.environ[name]
    os.environ["CARBONQ_CONFIG"] = str(path)


#: The two regions of the demo grid (recorded MOER of two Californian areas, see carbonq/data).
_DEMO_REGIONS: dict[str, dict[str, Any]] = {
    "norcal": {"zone": "SGIP_CAISO_PGE", "pue": "1.20", "pue_source": "assumed for the demo"},
    "socal": {"zone": "SGIP_CAISO_SCE", "pue": "1.20", "pue_source": "assumed for the demo"},
}


def load(**overrides: Any) -> Settings:
    """Read the settings. Raises ConfigError naming the setting, the value and the limit.

    Without any region the two demo regions are taken, on the recorded demo grid.
    """
    _check_variables()
    try:
        settings = Settings(**overrides)
        if not settings.regions:
            # dict() of the parsed values, so that the demo regions pass the same validation.
            zones = {region["zone"]: {"marginal": {"source": "recorded"}} for region in _DEMO_REGIONS.values()}
            given = settings.model_dump(exclude_unset=True)
            given["zones"] = {**zones, **given.get("zones", {})}
            given["regions"] = _DEMO_REGIONS
            settings = Settings(**given)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None  # its text would show the values, secrets too
    return settings


def _sentence(error: ValidationError) -> str:
    """Say what is wrong with one setting: a misspelt name first, because it often makes another one be missing."""
    problems = error.errors()
    first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    what = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return what
    path = tree.without_tags(first["loc"])
    name, where = path[0], ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"setting {where}: there is no such setting{nearest(path[-1], tree.siblings(first['loc']))}"
    value = first.get("input")
    is_shown = isinstance(value, str | int | float) and not tree.is_secret(first["loc"])
    source = origin(name) if name in Settings.model_fields else "default"
    given = f" (it is {value!r})" if is_shown else ""
    return f"setting {where}: {what}{given}" + ("" if source == "default" else f"; set by {source}")
