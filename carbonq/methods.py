"""The registry of methods: identifier, formula text, constants with their sources. Pure.

A formula that changes gets a new identifier here, and the old one stays for ever: an entry names the method that it was
booked with, its later revisions keep it, and the checker recomputes each by its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from carbonq.model import RateStatus


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that formulas use and no line carries."""

    name: str
    value: str
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Method:
    """One way to compute an entry's figures; ``changed`` says what is not as in the method before."""

    identifier: str
    formulas: str
    constants: tuple[Constant, ...]
    changed: str | None = None


_FORMULAS = """\
weight      = w_prompt x (prompt_tokens - cached_tokens) + w_cached x cached_tokens + w_completion x completion_tokens
share       = weight / sum of the engine batch's weights (1 / items where all weigh nothing)
component   = engine batch's component x share, in whole uJ: rounded down, then 1 uJ more to the largest remainders
              (earlier items first) until the items' components sum to the engine batch's; GPU, CPU, DRAM each by itself
energy_uj   = gpu_uj + cpu_uj + dram_uj, over those that were metered
emission_g  = energy_uj / 3.6e12 x pue x moer_g_per_kwh
inventory_g = energy_uj / 3.6e12 x pue x aer_g_per_kwh
embodied_g  = embodied_kg x 1000 x duration_s x share / (life_h x 3600)
transfer_g  = transfer_bytes / 1e9 x transfer_kwh_per_gb x transfer_g_per_kwh
baseline_g  = energy_uj / 3.6e12 x baseline_pue x baseline_moer_g_per_kwh
saved_g     = baseline_g - emission_g - transfer_g (nothing is deducted where transfer_g is empty),
              only where moer_status and baseline_moer_status are {alike}
Each gram figure is computed exactly and rounded once, half to even, to 15 decimals. It is empty where any of its
inputs is empty; unknown is never 0.
"""

_CONSTANTS = (
    Constant("3.6e12", "3600000000000", "uJ/kWh", "definition: 1 W = 1 J/s (SI brochure, 9th edition, 2019)"),
    Constant("1e9", "1000000000", "bytes/GB", "definition: decimal prefix giga (ISO/IEC 80000-13)"),
    Constant(
        "0.45359237",
        "0.45359237",
        "g/kWh for 1 lb/MWh",
        "definition: international avoirdupois pound (NIST SP 811, 2008, appendix B)",
    ),
    Constant("300", "300", "s", "length of a window, aligned to UTC"),
)

#: Every method ever used, oldest first.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.identifier: method
        for method in (
            Method("cq-2026-1", _FORMULAS.format(alike="the same"), _CONSTANTS),
            Method(
                "cq-2026-2",
                _FORMULAS.format(alike="the same, or both settled or restated"),
                _CONSTANTS,
                changed="saved_g is also stated where one of the two rates is settled and the other one restated: both "
                "are observed and final. By cq-2026-1 a provider's correction of one of them emptied it.",
            ),
        )
    }
)

#: The method in force; entries name theirs.
METHOD = "cq-2026-2"

#: Methods by which a saving needs the very same status on both sides.
STRICT: frozenset[str] = frozenset({"cq-2026-1"})

_FINAL = frozenset({RateStatus.SETTLED, RateStatus.RESTATED})


def may_compare(method: str, status: RateStatus | None, baseline_status: RateStatus | None) -> bool:
    """Say whether an emission and a baseline with rates of these statuses may be subtracted by a method."""
    if status is None or status is baseline_status:
        return status is not None
    return method not in STRICT and {status, baseline_status} <= _FINAL
