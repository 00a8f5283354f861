"""Any meter that shows a number over HTTP or in a file: a PDU's outlet, a server's BMC (IPMI, Redfish), a wall meter.

The answer is JSON with a path to the number, or CSV with a column whose last row counts. The number is energy since
some time (its unit a unit of energy), or power (then trapezoids between looks). Microjoules out.
"""

from __future__ import annotations

import csv
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import jsonpath
import orjson

from carbonq.errors import ConfigError
from carbonq.meters import fetch
from carbonq.meters.polled import LOST_AFTER_S, Polled, Unanswered
from carbonq.meters.power import PowerCounter
from carbonq.meters.protocol import COUNTER_RESET, METER_OUTAGE, SAMPLING_GAP, Component, MeterKind
from carbonq.model import Quality

#: Units of energy in uJ, and of power in mW.
ENERGY_UJ = {
    "uJ": Decimal(1),
    "mJ": Decimal(1_000),
    "J": Decimal(1_000_000),
    "kJ": Decimal(1_000_000_000),
    "Wh": Decimal(3_600_000_000),
    "kWh": Decimal(3_600_000_000_000),
    "MWh": Decimal(3_600_000_000_000_000),
}
POWER_MW = {"mW": Decimal(1), "W": Decimal(1_000), "kW": Decimal(1_000_000)}

#: The largest reading that is believed, in uJ (5 TWh) or mW, and the largest step between two looks (10 MWh): what a
#: broken meter shows beyond would not fit into the ledger, or would be far more than all that was ever used.
MAX_NUMBER = Decimal(2**64)
MAX_STEP_UJ = 36 * 10**15


@dataclass(frozen=True, slots=True)
class Place:
    """Where a number is: an address or file, a JSON path or the name of a CSV column, and its unit."""

    url: str
    value: str
    unit: str
    form: Literal["json", "csv"] = "json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def shown(self) -> str:
        """Say it without secrets."""
        return f"{fetch.shown_address(self.url)} {self.value}"


class ExternalMeter:
    """A meter that is not of this host's kernel or drivers, for one component.

    Args:
        place: where its number is.
        component: what it covers; for one that covers the whole host that is the CPU, and nothing else is metered.
        period_s: machine seconds between looks.
        lag_s: how far the number itself trails, in seconds.
        uncertainty_pct: as its maker states it.

    Raises ConfigError for an unknown unit or path, and when there is no number at the first look.
    """

    kind = MeterKind.EXTERNAL

    def __init__(
        self,
        place: Place,
        component: Component,
        *,
        period_s: float = 1.0,
        lag_s: float = 0.0,
        uncertainty_pct: float | None = None,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        if place.unit not in ENERGY_UJ and place.unit not in POWER_MW:
            known = ", ".join((*ENERGY_UJ, *POWER_MW))
            raise ConfigError(f"{place.shown}: unknown unit {place.unit!r}; known: {known}")
        self._path = _compile(place) if place.form == "json" else None
        self._place = place
        self.component = component
        # A counter measures; power is only sampled.
        self.quality = Quality.MEASURED if place.unit in ENERGY_UJ else Quality.ESTIMATED
        self.device_ids: Sequence[str] = (place.shown,)
        self.lag_s = lag_s + period_s
        self.uncertainty_pct = uncertainty_pct
        self._lock = threading.Lock()
        self._last_uj: int | None = None
        self._total_uj = 0
        self._mw = 0
        self._power: PowerCounter | None = None
        self._was_reset = False
        self._polled = Polled(self._look, period_s=period_s, lost_after_s=lost_after_s)

    def read_uj(self) -> int:
        """Return the uJ since the first look, as of the last one. Raises MeterLost after a long silence."""
        self._polled.check()
        with self._lock:
            return self._total_uj

    def marks(self) -> Sequence[str]:
        """Say whether the counter fell, or was not seen for a while."""
        was_silent = self._polled.was_silent()
        with self._lock:
            was_reset, self._was_reset = self._was_reset, False
            had_gap = self._power is not None and self._power.had_gap()
        if self._power is not None:
            return (SAMPLING_GAP,) if had_gap or was_silent else ()
        return (*((COUNTER_RESET,) if was_reset else ()), *((METER_OUTAGE,) if was_silent else ()))

    def close(self) -> None:
        """End the thread."""
        self._polled.close()

    def _look(self) -> None:
        number = self._number(fetch.text(self._place.url, self._place.headers))
        unit = self._place.unit
        with self._lock:
            if unit in POWER_MW:
                self._mw = int(number * POWER_MW[unit])
                self._power = self._power or PowerCounter(lambda: self._mw)
                self._total_uj = self._power.read_uj()
                return
            now_uj = int(number * ENERGY_UJ[unit])
            if self._last_uj is not None and now_uj - self._last_uj > MAX_STEP_UJ:
                raise Unanswered(f"{self._place.shown} is {number} {unit}, over 10 MWh more than at the look before")
            last_uj = now_uj if self._last_uj is None else self._last_uj
            # One that fell was exchanged or set to zero, and what it showed before is unrelated: count on from here.
            self._was_reset = self._was_reset or now_uj < last_uj
            self._total_uj += max(0, now_uj - last_uj)
            self._last_uj = now_uj

    def _number(self, text: str) -> Decimal:
        found = self._from_csv(text) if self._path is None else self._from_json(text)
        try:
            number = Decimal(str(found))
        except InvalidOperation:
            number = Decimal("NaN")
        if isinstance(found, bool) or not number.is_finite() or number < 0:
            raise Unanswered(f"{self._place.shown} is {found!r}, which is no number of at least 0")
        if number * (POWER_MW.get(self._place.unit) or ENERGY_UJ[self._place.unit]) > MAX_NUMBER:
            raise Unanswered(f"{self._place.shown} is {found!r}, which is more than any meter can have counted")
        return number

    def _from_json(self, text: str) -> Any:
        assert self._path is not None
        try:
            found = self._path.findall(orjson.loads(text))
        except orjson.JSONDecodeError as error:
            raise Unanswered(f"{fetch.shown_address(self._place.url)} answers with what is no JSON: {error}") from error
        if len(found) != 1:
            raise Unanswered(f"{self._place.shown} finds {len(found)} numbers in the answer, not one")
        return found[0]

    def _from_csv(self, text: str) -> Any:
        rows = list(csv.DictReader(text.splitlines()))
        if not rows or self._place.value not in rows[-1]:
            raise Unanswered(f"{fetch.shown_address(self._place.url)} has no row with a column {self._place.value!r}")
        return rows[-1][self._place.value]


def _compile(place: Place) -> Any:
    try:
        return jsonpath.compile(place.value)
    except jsonpath.JSONPathError as error:
        raise ConfigError(f"{place.shown} is no JSON path: {error}") from error
