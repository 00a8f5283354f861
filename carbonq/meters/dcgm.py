"""NVIDIA GPUs by DCGM's exporter: the same total-energy counter as NVML's, read over HTTP as Prometheus text.

For hosts where the worker may not use NVML itself but a monitoring agent does. The exporter collects every 30 s unless
told otherwise (``dcgm-exporter -c 1000``: every second), and the meter trails by that and by its own period.
Millijoules in, microjoules out.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from carbonq.meters import fetch
from carbonq.meters.polled import LOST_AFTER_S, Polled, Unanswered
from carbonq.meters.protocol import COUNTER_RESET, METER_OUTAGE, Component, MeterKind
from carbonq.model import Quality

#: The exporter's name of the counter (mJ), as its default set of metrics has it.
METRIC = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"

_UJ_PER_MJ = 1000


class DcgmMeter:
    """The energy of some GPUs as an exporter counts them, summed.

    Args:
        url: of the exporter, e.g. ``http://127.0.0.1:9400/metrics``.
        gpus: indices or UUIDs; empty: all that the exporter shows.
        period_s: machine seconds between looks.
        lag_s: how often the exporter collects, in seconds.

    Raises ConfigError when the exporter does not answer, or does not show a GPU that was named.
    """

    component = Component.GPU
    kind = MeterKind.DCGM
    quality = Quality.MEASURED
    uncertainty_pct: float | None = None  # nobody states one

    def __init__(
        self,
        url: str,
        gpus: Sequence[str] = (),
        *,
        headers: Mapping[str, str] | None = None,
        period_s: float = 1.0,
        lag_s: float = 30.0,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self._url = url
        self._headers = headers or {}
        self._gpus = tuple(gpus)
        self.lag_s = lag_s + period_s
        self._lock = threading.Lock()
        self._last_mj: dict[str, int] = {}
        self._total_mj = 0
        self._was_reset = False
        self._polled = Polled(self._look, period_s=period_s, lost_after_s=lost_after_s)
        self.device_ids: Sequence[str] = tuple(sorted(self._last_mj))

    def read_uj(self) -> int:
        """Return the uJ counted since the first look, as of the last one. Raises MeterLost after a long silence."""
        self._polled.check()
        with self._lock:
            return self._total_mj * _UJ_PER_MJ

    def marks(self) -> Sequence[str]:
        """Say whether a counter was reset, or the exporter did not answer for a while."""
        with self._lock:
            was_reset, self._was_reset = self._was_reset, False
        was_away = self._polled.was_silent()
        return (*((COUNTER_RESET,) if was_reset else ()), *((METER_OUTAGE,) if was_away else ()))

    def close(self) -> None:
        """End the thread."""
        self._polled.close()

    def _look(self) -> None:
        shown = self._parse(fetch.text(self._url, self._headers))
        with self._lock:
            known = self._last_mj or shown
            gone = sorted(set(known) - set(shown))
            if gone:
                raise Unanswered(f"{fetch.shown_address(self._url)} shows {', '.join(gone)} no more")
            for uuid, last_mj in known.items():
                now_mj = shown[uuid]
                is_reset = now_mj < last_mj
                self._was_reset = self._was_reset or is_reset
                self._total_mj += now_mj if is_reset else now_mj - last_mj
            self._last_mj = {uuid: shown[uuid] for uuid in known}

    def _parse(self, text: str) -> dict[str, int]:
        """Return the counters of the wanted GPUs by UUID; a MIG slice's lines repeat its GPU's, so each counts once."""
        found: dict[str, int] = {}
        wanted = dict.fromkeys(self._gpus, False)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples if family.name == METRIC else ():
                    uuid, index = sample.labels.get("UUID", ""), sample.labels.get("gpu", "")
                    if not uuid or (self._gpus and not {uuid, index} & set(self._gpus)):
                        continue
                    found[uuid] = int(sample.value)
                    wanted |= {name: True for name in (uuid, index) if name in wanted}
        except ValueError as error:
            raise Unanswered(
                f"{fetch.shown_address(self._url)} answers with what is no Prometheus text: {error}"
            ) from error
        missing = [name for name, is_there in wanted.items() if not is_there]
        if not found or missing:
            what = f"GPU {', '.join(missing)}" if missing else METRIC
            raise Unanswered(f"{fetch.shown_address(self._url)} does not show {what}")
        return found
