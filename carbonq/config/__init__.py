"""Settings: the only room that reads the environment and ``carbonq.toml``. Library code gets plain values.

Order: arguments > ``CARBONQ_*`` (``__`` nests) > ``CARBONQ_*_FILE`` (secrets) > ``carbonq.toml`` > what the
installation's database keeps > defaults. Every field states its default, unit and interactions in its description:
``docs/settings.md`` is made of them, and ``carbonq config show`` prints the settings in force with their origins.
"""

from carbonq.config.given import Reading, Sources
from carbonq.config.grid import AccountsSettings, SourceSettings, ZoneSettings
from carbonq.config.load import check_exporter, environment, given, isolate, load
from carbonq.config.mask import masked
from carbonq.config.models import ModelSettings
from carbonq.config.origins import config_path
from carbonq.config.regions import RegionSettings
from carbonq.config.scope import Difference, leaves, shared
from carbonq.config.settings import DEFAULT_DATA_DIR, Settings
from carbonq.config.strict import NAME
from carbonq.config.tree import dotted

__all__ = [
    "DEFAULT_DATA_DIR",
    "NAME",
    "AccountsSettings",
    "Difference",
    "ModelSettings",
    "Reading",
    "RegionSettings",
    "Settings",
    "SourceSettings",
    "Sources",
    "ZoneSettings",
    "check_exporter",
    "config_path",
    "dotted",
    "environment",
    "given",
    "isolate",
    "leaves",
    "load",
    "masked",
    "shared",
]
