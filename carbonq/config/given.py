"""What this process was given as settings: arguments, variables, the settings file; and the settings that makes.

Reading comes before checking, because what is given may be only half of it: a host that says nothing of regions takes
them from the installation's database, which must be found first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, SecretStr, ValidationError

from carbonq.config import layers, otel, scope, variables
from carbonq.config.complaint import sentence
from carbonq.config.layers import Given, Layer
from carbonq.config.origins import config_path, read_toml
from carbonq.config.scope import Difference
from carbonq.config.settings import Settings
from carbonq.config.tree import Place
from carbonq.errors import ConfigError

#: Where a value comes from that no variable, file or argument gave.
DATABASE = "the installation's database"
ARGUMENT = "argument"

#: The two regions of the demo grid (recorded MOER of two Californian areas, see carbonq/data).
_DEMO_REGIONS: dict[str, dict[str, Any]] = {
    "norcal": {"zone": "SGIP_CAISO_PGE", "pue": "1.20", "pue_source": "assumed for the demo"},
    "socal": {"zone": "SGIP_CAISO_SCE", "pue": "1.20", "pue_source": "assumed for the demo"},
}

#: Tables and names that only make sense together with what the database says.
_TABLES = ("home_region", "models", "regions", "zones")


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings, and what was given to make them."""

    settings: Settings
    layer: Layer

    def origin(self, path: Place) -> str:
        """Say where the value at a place comes from; several where a table was put together from several."""
        exact = layers.origin(self.layer, path)
        if exact is not None:
            return exact
        return ", ".join(layers.origins_below(self.layer, path)) or "default"


class Sources:
    """What was given, read once; it makes settings with or without those that the database keeps."""

    def __init__(self, overrides: Mapping[str, Any]) -> None:
        """Read the settings file. Raises ConfigError for one that cannot be read."""
        self._overrides = reveal(overrides)
        path = config_path()
        self._toml, self._lines = ({}, {}) if path is None else read_toml(path, Settings.model_fields)
        self._file = "" if path is None else str(path)

    def basics(self) -> Settings:
        """Return the settings without regions, zones and models: enough to find database, broker and API.

        Raises ConfigError.
        """
        return self._settings({path: given for path, given in self._layer({}).items() if path[0] not in _TABLES})

    @property
    def has_regions(self) -> bool:
        """Say whether this process was told of regions, beyond what each host may say for itself."""
        return any(
            path[0] == "regions" and len(path) > 2 and scope.scope_at(path) is scope.Scope.SHARED
            for path in self._layer({})
        )

    def read(self, shared: Mapping[str, Any] | None = None) -> Reading:
        """Return the settings: what was given, over what the database keeps, over the defaults. Raises ConfigError.

        Without either, the two demo regions are taken, on the recorded demo grid.
        """
        layer = self._layer(shared or {})
        if not any(path[0] == "regions" and len(path) > 1 for path in layer):
            below: Layer = {}
            # A zone of the user's own may have one of these names.
            zones = {region["zone"]: {"marginal": {"source": "recorded"}} for region in _DEMO_REGIONS.values()}
            free = {name: value for name, value in zones.items() if ("zones", name) not in layer}
            _lay(below, {"regions": _DEMO_REGIONS, "zones": free}, lambda _: "default")
            for path, given in layer.items():
                layers.put(below, path, given)
            layer = below
        return Reading(self._settings(layer), layer)

    def differences(self, shared: Mapping[str, Any]) -> list[Difference]:
        """Return the shared settings of which this process was told something else than the database keeps."""
        given = [path for path, one in self._layer(shared).items() if one.origin != DATABASE]
        return scope.differences(given, self.read(shared).settings, _installed(shared))

    def _layer(self, shared: Mapping[str, Any]) -> Layer:
        layer: Layer = {}
        _lay(layer, scope.known_only(shared), lambda _: DATABASE)
        if (traces := otel.asked(os.environ)) is not None:
            _lay(layer, {"traces": traces[0]}, lambda _: traces[1])
        _lay(layer, self._toml, self._line_of)

        def names_at(place: Place) -> Iterable[str]:
            return [str(path[len(place)]) for path in layer if path[: len(place)] == place and len(path) > len(place)]

        for one in variables.read(os.environ, names_at):
            for path, value in layers.flatten(one.value, one.path):
                layers.put(layer, path, Given(value, one.name))
        _lay(layer, self._overrides, lambda _: ARGUMENT)
        return layer

    def _line_of(self, path: Place) -> str:
        lines = (self._lines.get(path[:length]) for length in range(len(path), 0, -1))
        line = next((one for one in lines if one is not None), None)
        return self._file if line is None else f"{self._file} line {line}"

    @staticmethod
    def _settings(layer: Layer) -> Settings:
        try:
            return Settings.model_validate(layers.nested(layer))
        except ValidationError as error:
            raise ConfigError(sentence(error, layer)) from None  # its text would show the values, secrets too


def _installed(shared: Mapping[str, Any]) -> Settings:
    try:
        return Settings.model_validate(scope.known_only(shared))
    except ValidationError as error:
        raise ConfigError(
            f"the installation's settings in the database are of no use here: {sentence(error, {})}"
        ) from None


def _lay(layer: Layer, values: Mapping[str, Any], origin_of: Callable[[Place], str]) -> None:
    for path, value in layers.flatten(values):
        layers.put(layer, path, Given(value, origin_of(path)))


def reveal(value: Any) -> Any:
    """Return a value as JSON has it, secrets in the clear."""
    if isinstance(value, BaseModel):
        return {name: reveal(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {key: reveal(inner) for key, inner in cast(Mapping[str, Any], value).items()}
    if isinstance(value, tuple | list):
        return [reveal(inner) for inner in cast(Sequence[Any], value)]
    if isinstance(value, date):  # a time, too
        return value.isoformat()
    return str(value) if isinstance(value, Path | Decimal) else value
