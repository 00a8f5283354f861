"""Keep two workers of one host from metering the same device: each device belongs to one worker at a time."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Sequence

from carbonq.errors import ConfigError
from carbonq.meters.protocol import Component, Meter

from .presence import is_locked, open_lock

logger = logging.getLogger(__name__)


class Devices:
    """Locks on the devices that this process meters, held until it ends."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._held: list[int] = []

    def keep(self, meters: Sequence[Meter], *, is_named: bool) -> list[Meter]:
        """Return the meters whose GPUs are nobody else's; the others are closed.

        Raises ConfigError when the GPUs were named for this worker (``is_named``) and another one holds them.
        """
        kept: list[Meter] = []
        for meter in meters:
            taken = self._taken(meter)
            if taken is None:
                kept.append(meter)
                continue
            meter.close()
            if is_named:
                raise ConfigError(f"GPU {taken} is metered by another worker of this host; give each region its own")
            logger.warning("GPU %s is metered by another worker of this host: not metered here", taken)
        return kept

    def _taken(self, meter: Meter) -> str | None:
        """Take all devices of a meter, or none; return the one that another worker has."""
        taken: list[int] = []
        for device in meter.device_ids if meter.component is Component.GPU else ():
            name = re.sub(r"[^A-Za-z0-9-]", "_", device)
            descriptor = open_lock(f"carbonq-device-{name}.lock")
            taken.append(descriptor)
            if not is_locked(descriptor, fcntl.LOCK_EX):
                for one in taken:
                    os.close(one)
                return device
        self._held += taken
        return None
