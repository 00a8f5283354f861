"""A stand-in for AMD SMI's Python module, as far as carbonq's meter calls it; FAKE_AMDSMI names a JSON file.

``{"init": null or text, "gpus": [{"uuid": ..., "count": ..., "unit": 15.3, "error": null or text, "key": ...}]}``
"""

import json
import os
from pathlib import Path


class AmdSmiException(Exception):
    pass


def _state():
    return json.loads(Path(os.environ["FAKE_AMDSMI"]).read_text())


def amdsmi_init():
    if _state().get("init"):
        raise AmdSmiException(_state()["init"])


def amdsmi_shut_down():
    if _state().get("shut"):
        raise AmdSmiException(_state()["shut"])


def amdsmi_get_processor_handles():
    return list(range(len(_state()["gpus"])))


def amdsmi_get_gpu_device_uuid(handle):
    return _state()["gpus"][handle]["uuid"]


def amdsmi_get_energy_count(handle):
    gpu = _state()["gpus"][handle]
    if gpu.get("error"):
        raise AmdSmiException(gpu["error"])
    return {
        gpu.get("key", "energy_accumulator"): gpu["count"],
        "counter_resolution": gpu.get("unit", 15.3),
        "timestamp": 1,
    }
