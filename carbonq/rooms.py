"""Find ``workers``, ``beat`` and ``migrations``: beside ``carbonq/`` in a checkout, inside it in a wheel.

The names are generic and other distributions own them, so they are never imported from ``sys.path``: they are loaded
by their place, as ``carbonq.workers`` and so on, and use relative imports among themselves.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from carbonq.errors import ConfigError

_HERE = Path(__file__).resolve().parent


def folder(room: str) -> Path:
    """Return the folder of a room (``workers``, ``beat`` or ``migrations``). Raises ConfigError if there is none."""
    for place in (_HERE / room, _HERE.parent / room):
        if (place / "__init__.py").is_file():
            return place
    raise ConfigError(f"carbonq's {room}/ folder is missing from this installation; reinstall carbonq")


def load(room: str, module: str) -> ModuleType:
    """Import ``module`` of a room, e.g. ``load("workers", "region")`` gives ``carbonq.workers.region``."""
    name = f"carbonq.{room}"
    if name not in sys.modules:
        place = folder(room)
        spec = importlib.util.spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        spec.loader.exec_module(package)
    return import_module(f"{name}.{module}")
