"""Contract targets: a promise of gCO2e for each thousand tokens, its running value and its forecast. Pure."""

from __future__ import annotations
