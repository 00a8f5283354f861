"""Settings: the only room that reads the environment and ``carbonq.toml``. Library code gets plain values.

Order: arguments > ``CARBONQ_*`` (``__`` nests) > ``CARBONQ_*_FILE`` (secrets) > ``carbonq.toml`` > defaults. Every
field states its default, unit and interactions in its description; ``carbonq config show`` prints them with origins.
"""

from carbonq.config.grid import AccountsSettings, SourceSettings, ZoneSettings
from carbonq.config.load import environment, isolate, load, origin
from carbonq.config.models import ModelSettings
from carbonq.config.origins import config_path
from carbonq.config.regions import RegionSettings
from carbonq.config.settings import DEFAULT_DATA_DIR, Settings
from carbonq.config.strict import NAME

__all__ = [
    "DEFAULT_DATA_DIR",
    "NAME",
    "AccountsSettings",
    "ModelSettings",
    "RegionSettings",
    "Settings",
    "SourceSettings",
    "ZoneSettings",
    "config_path",
    "environment",
    "isolate",
    "load",
    "origin",
]
