"""What all settings have in common: unknown names are refused, values are frozen, names are plain."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

#: What tenants and regions may be called.
NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"


class Strict(BaseModel):
    """A frozen table of settings that refuses unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
