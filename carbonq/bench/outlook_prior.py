"""Learn the weights that a new zone starts to be judged with from the recorded days that ship: ``plan/prior.py``.

python -m carbonq.bench.outlook_prior > carbonq/plan/prior.py
"""

from __future__ import annotations

import numpy as np

from carbonq.bench.outlook_files import Issued
from carbonq.bench.outlook_walk import gather, learn_days
from carbonq.grid.recorded import recording
from carbonq.plan.blend import BUCKETS, Skill
from carbonq.plan.evidence import Kind
from carbonq.plan.forecaster import WINDOWS_A_DAY, Series

_HEAD = '''\
"""Weights that a new zone begins with, once they have proved better there: by first lead. Written by a program.

Learned by ``python -m carbonq.bench.outlook_prior`` from the recorded days that ship (two Californian areas, 14 days of
June 2021). They are of fresh forecasts, in the order of ``evidence.FEATURES``, and are used nowhere before they have
proved better than the source's own forecast there.
"""

from __future__ import annotations

# fmt: off
WEIGHTS: dict[int, tuple[float, ...]] = {'''


def prior() -> Skill:
    """Learn from both areas of the recorded days."""
    days, skill = recording(), Skill(has_prior=False)
    for zone, table in days.observed.items():
        origins = np.arange(days.first_window, days.first_window + days.windows)
        observed = Series(days.first_window, np.where(table < 0, np.nan, table.astype(np.float64)))
        foretold = days.forecast[zone].astype(np.float64)
        issued = Issued(origins, np.where(foretold < 0, np.nan, foretold), step=1, starts=1)
        made = gather(issued, observed, origins, np.arange(37), 0)
        mine = Skill(has_prior=False)
        for day in sorted(set((origins // WINDOWS_A_DAY).tolist())):
            mine = learn_days(mine, made, [day])
        skill = skill.plus(mine)
    return skill


if __name__ == "__main__":
    found = prior()
    print(_HEAD)
    for bucket, first in enumerate(BUCKETS.tolist()):
        if found.pairs[Kind.FRESH, bucket] > 0:
            numbers = ", ".join(f"{weight:.3f}" for weight in found.weights[Kind.FRESH, bucket])
            print(f"    {first}: ({numbers}),  # noqa: E501")
    print("}")
