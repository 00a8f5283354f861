from __future__ import annotations

import re
import subprocess
import sys
from unittest import mock

import pytest

from carbonq import ids

SHAPE = re.compile(r"plc_[0-9a-hjkmnp-tv-z]{26}")


@pytest.mark.parametrize("count", [0, 1, 2, 1023, 1024, 1025, 5000])
def test_many_identifiers_are_different_sorted_and_shaped_like_one(count: int) -> None:
    made = ids.many("plc", count)
    assert len(made) == len(set(made)) == count
    assert made == sorted(made)
    assert all(SHAPE.fullmatch(one) for one in [*made, ids.new("plc")])


def test_a_child_makes_other_identifiers_than_its_parent() -> None:
    # In a process without threads: forking this one is asking for trouble.
    code = """
import os, time
from unittest import mock
from carbonq import ids
ids.new("job")
reading, writing = os.pipe()
with mock.patch("time.time_ns", return_value=0):
    if not os.fork():
        os.write(writing, ids.new("job").encode())
        os._exit(0)
    os.wait()
    assert os.read(reading, 100).decode() != ids.new("job")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.parametrize("chance", [b"\xff" * 10, b"\x00" * 10, b"\xff" * 9 + b"\x01"])
def test_counting_up_never_changes_the_time(chance: bytes) -> None:
    with mock.patch("os.urandom", return_value=chance):
        made = ids.many("plc", 3000)
        times = {one[4:14] for one in made}
        assert len(times) == 1
        assert len(set(made)) == 3000
