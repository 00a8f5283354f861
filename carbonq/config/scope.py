"""Which settings all hosts of an installation must agree on, and what of the settings is kept in its database. Pure.

Shared settings are kept in the database and compared when a process starts. Settings of a host are its own; for some of
them (paths, GPUs) the database keeps what the installation was made with, and a host that says nothing takes that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from carbonq.config import tree
from carbonq.config.grid import HttpSettings
from carbonq.config.meters import CpuMeterSettings, DramMeterSettings, GpuMeterSettings, MetersSettings
from carbonq.config.regions import RegionSettings
from carbonq.config.settings import Settings
from carbonq.config.tree import Place


class Scope(StrEnum):
    """Whose a setting is."""

    SHARED = "all hosts"
    PREFILLED = "this host, else as stored"
    HOST = "this host"


#: A worker's meters are its host's.
_METERS = (MetersSettings, GpuMeterSettings, CpuMeterSettings, DramMeterSettings)

#: Settings of a host by class; secrets are of a host, too.
_HOST: Mapping[type[BaseModel], frozenset[str]] = {
    # An address or its parameters may hold a key, and nobody can tell.
    HttpSettings: frozenset({"url", "forecast_url", "params", "headers"}),
    **{kind: frozenset(kind.model_fields) for kind in _METERS},
    RegionSettings: frozenset({"meters"}),
    Settings: frozenset(
        {
            "accounts",
            "allowed_hosts",
            "api_url",
            "data_dir",
            "flower_host",
            "flower_port",
            "flower_url",
            "host",
            "lock_dir",
            "log_level",
            "metrics_host",
            "metrics_name_tenants",
            "metrics_port",
            "port",
            "tenant",
            "traces",
        }
    ),
}

#: Settings of a host that is given the installation's when it says nothing; paths of files are, too.
_PREFILLED: Mapping[type[BaseModel], frozenset[str]] = {
    RegionSettings: frozenset({"gpus", "threads", "watts_per_core"})
}

#: What decides where work runs and what it is said to emit: hosts that differ here do not start.
_DECISIVE = frozenset({"home_region", "isolate_tenants", "models", "queue_prefix", "regions", "zones"})


def scope_of(model: type[BaseModel], field: str) -> Scope:
    """Say whose a field of a class of settings is."""
    annotation = model.model_fields[field].annotation
    kinds = list(tree.alternatives(annotation))
    if field in _HOST.get(model, ()) or SecretStr in kinds:
        return Scope.HOST
    if field in _PREFILLED.get(model, ()) or Path in kinds or field == "base_url":
        return Scope.PREFILLED
    return Scope.SHARED


def scope_at(path: Place) -> Scope:
    """Say whose the setting at a place is."""
    place: Place = ()
    for part in path:
        place = (*place, part)
        owner = tree.owner(place)
        if owner is not None and scope_of(*owner) is not Scope.SHARED:
            return scope_of(*owner)
    return Scope.SHARED


def shared(settings: Settings, *, prefilled: bool = True) -> dict[str, Any]:
    """Return what the database keeps of the settings, as JSON: what was stated and is no default, without secrets.

    Without ``prefilled``: only what hosts must agree on, so that its digest tells whether they do.
    """
    wanted = {Scope.SHARED, Scope.PREFILLED} if prefilled else {Scope.SHARED}
    kept = _kept(settings, wanted)
    if settings.regions:
        kept["home_region"] = settings.first_region  # JSON in a database keeps no order
    return kept


def _kept(table: BaseModel, wanted: set[Scope]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if scope_of(type(table), name) not in wanted:
            continue
        if not field.is_required() and value == field.get_default(call_default_factory=True):
            continue
        kept[name] = _json(value, wanted)
    return kept


def _json(value: Any, wanted: set[Scope]) -> Any:
    match value:
        case BaseModel():
            value = _kept(value, wanted)
        case Mapping():
            value = {key: _json(inner, wanted) for key, inner in cast(Mapping[str, Any], value).items()}
        case tuple() | list():
            value = [_json(inner, wanted) for inner in cast(Sequence[Any], value)]
        case datetime():
            value = value.isoformat()
        case Decimal():
            value = format(value.normalize(), "f")
        case Path():
            value = str(value.absolute())
        case str() if "@" in value and "://" in value:
            parts = urlsplit(value)
            value = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        case _:
            pass
    return value


def known_only(value: Any, path: Place = ()) -> Any:
    """Leave out what this version knows no setting for: a newer one may have written it."""
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        return {key: known_only(one, (*path, key)) for key, one in table.items() if tree.is_known((*path, key))}
    if isinstance(value, list) and tree.is_list_of_tables(path):
        return [known_only(one, (*path, index)) for index, one in enumerate(cast(list[Any], value))]
    return value


@dataclass(frozen=True, slots=True)
class Difference:
    """A shared setting of which a host says something else than the installation does."""

    name: str
    here: str
    there: str | None
    is_decisive: bool

    def __str__(self) -> str:
        """Say it in half a sentence."""
        if self.there is None:
            return f"this host has {self.name}, the installation has not"
        return f"this host says {self.name} = {self.here}, the installation says {self.there}"


def differences(given: Sequence[Place], here: Settings, there: Settings) -> list[Difference]:
    """Compare the shared settings that a host was given with the installation's."""
    found: dict[str, Difference] = {}
    for path in given:
        if scope_at(path) is not Scope.SHARED:
            continue
        for length in range(1, len(path) + 1):
            if value_at(there, path[:length]) is None and value_at(here, path[:length]) is not None:
                name = tree.dotted(path[:length])
                found.setdefault(name, Difference(name, "", None, path[0] in _DECISIVE))
                break
        else:
            ours, theirs = _leaf(value_at(here, path)), _leaf(value_at(there, path))
            if ours != theirs:
                name = tree.dotted(path)
                found[name] = Difference(name, _shown(ours), _shown(theirs), path[0] in _DECISIVE)
    return list(found.values())


def _shown(leaf: Any) -> str:
    return str(leaf) or "''"


def _leaf(value: Any) -> Any:
    """Return what is compared and shown: of tables that they are there, of lists of tables how many they have."""
    if isinstance(value, BaseModel | Mapping):
        return "a table"
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        if any(isinstance(one, BaseModel) for one in items):
            return f"{len(items)} of them"
        return ", ".join(str(one) for one in items) or "none"
    return value


def value_at(settings: Settings, path: Place) -> Any:
    """Return the value at a place; None where there is none."""
    value: Any = settings
    for part in path:
        if isinstance(value, BaseModel):
            value = getattr(value, str(part), None)
        elif isinstance(value, Mapping):
            value = cast(Mapping[Any, Any], value).get(part)
        elif isinstance(value, tuple) and isinstance(part, int):
            items = cast(tuple[Any, ...], value)
            value = items[part] if part < len(items) else None
        else:
            return None
    return value


def leaves(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield every setting that is no table with its place; an empty table or list is one, too."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from leaves(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping) and value:
        for key, inner in cast(Mapping[str, Any], value).items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, tuple) and any(isinstance(one, BaseModel) for one in cast(tuple[Any, ...], value)):
        for index, inner in enumerate(cast(tuple[Any, ...], value)):
            yield from leaves(inner, (*path, index))
    else:
        yield path, value
