"""Keep two workers of one host from metering the same device: each device belongs to one worker at a time.

A device is a GPU (by its UUID) or a counter of something larger than this process, such as an external meter. Its lock
is a file in a folder that all workers of a host share (the setting ``lock_dir``; containers share it as a volume), held
until the process ends, so it is never stale. The file names its holder for whoever is refused.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from carbonq.errors import ConfigError
from carbonq.meters.protocol import MARKS, Component, Meter, MeterKind

from .presence import folder, is_locked, open_lock

logger = logging.getLogger(__name__)

#: Where Linux lists the locks that are held, with the processes that hold them.
PROC_LOCKS = Path("/proc/locks")


class Devices:
    """Locks on the devices that this process meters, held until it ends."""

    def __init__(self, lock_dir: Path | None = None) -> None:
        """Hold none yet; ``lock_dir`` is the folder of the locks, None: the system's temporary folder."""
        self._lock_dir = lock_dir
        self._held: list[int] = []

    def keep(self, meters: Sequence[Meter], *, is_named: bool) -> list[Meter]:
        """Return the meters whose devices are nobody else's; the others are closed.

        Raises ConfigError when the devices were named for this worker (``is_named``, or an external meter) and another
        one holds them; it says which process. Then all meters are closed.
        """
        kept: list[Meter] = []
        for meter in meters:
            taken = self._taken(meter)
            if taken is None:
                kept.append(meter)
                continue
            meter.close()
            device, holder = taken
            what = f"GPU {device}" if meter.component is Component.GPU else device
            if is_named or meter.component is not Component.GPU:
                for other in meters:
                    other.close()
                raise ConfigError(
                    f"{what} is metered by another worker of this host ({holder}); give each region its own, "
                    f"or stop that one (lock in {folder(self._lock_dir)})"
                )
            logger.warning("%s is metered by another worker of this host (%s): not metered here", what, holder)
        return kept

    def _taken(self, meter: Meter) -> tuple[str, str] | None:
        """Take all devices of a meter, or none; return the one that another worker has, and who that is."""
        taken: list[int] = []
        for device in _exclusive(meter):
            name = re.sub(r"[^A-Za-z0-9-]", "_", device)
            descriptor = open_lock(f"carbonq-device-{name[-128:]}.lock", self._lock_dir)
            taken.append(descriptor)
            if not is_locked(descriptor, fcntl.LOCK_EX):
                holder = holder_of(descriptor)
                for one in taken:
                    os.close(one)
                return device, holder
            _sign(descriptor)
        self._held += taken
        return None


def _exclusive(meter: Meter) -> Sequence[str]:
    """Return the devices that count more than this worker's own use. RAPL is not among them: see ``presence.py``."""
    if meter.kind is MeterKind.EXTERNAL:
        return tuple(meter.device_ids[:1])
    is_counted = meter.component is Component.GPU and meter.kind not in {MeterKind.TDP, MeterKind.NAMEPLATE}
    return tuple(one for one in meter.device_ids if is_counted and one not in MARKS)


def pin(gpus: Sequence[str], meters: Sequence[Meter]) -> None:
    """Let CUDA see the GPUs that were named for this worker and no others, by UUID; what the operator has set stays.

    An index means another GPU where CUDA counts otherwise than NVML, or where a GPU fell out; a UUID does not.
    """
    if not gpus:
        return
    metered = [one for meter in meters if meter.component is Component.GPU for one in meter.device_ids]
    uuids = [one for one in metered if one not in MARKS]
    # One device a name, in the order of the names; where that cannot be told the names stay.
    pairs = zip(gpus, uuids, strict=True) if len(uuids) == len(gpus) else zip(gpus, gpus, strict=True)
    seen = [uuid if name.isdigit() and uuid.startswith("GPU-") else name for name, uuid in pairs]
    # For names that stayed indices: NVML counts by bus; CUDA would put the fastest first.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(seen))
    logger.info("CUDA sees %s", os.environ["CUDA_VISIBLE_DEVICES"])


def _sign(descriptor: int) -> None:
    """Write who holds a lock, where the file may be written to."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError:
        return  # made by another user; /proc/locks tells, too


def holder_of(descriptor: int, locks: Path = PROC_LOCKS) -> str:
    """Say who holds the lock on an open file: by the kernel's list, else by what the holder wrote."""
    try:
        number = os.fstat(descriptor).st_ino
        for line in locks.read_text(encoding="ascii").splitlines():
            # "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"; 0 is a process of another namespace
            words = line.split()
            if "->" not in words and words[1:2] == ["FLOCK"] and words[5].endswith(f":{number}") and int(words[4]) > 0:
                return f"pid {words[4]}"
    except (OSError, ValueError, IndexError):
        pass
    written = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
    return written or "which one cannot be seen from here"
