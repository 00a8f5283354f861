"""Which items go to a smaller model, and what that saved. Pure."""

from __future__ import annotations
