"""A replay drawn: grams of each policy beside its baseline, or curves against slots; PNG or SVG by the file's name.

matplotlib is an extra (``plot``) and is imported only here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carbonq.errors import ConfigError, InvalidRequest
from carbonq.replay.capacity import Point
from carbonq.replay.figures import Blocks, Outcome, saving
from carbonq.replay.policies import BASELINES

#: Endings that are drawn.
FORMATS = (".png", ".svg")

_GREY, _GREEN, _BLUE = "#9aa0a6", "#1a9850", "#4575b4"


def check(path: Path) -> None:
    """Raise before anything is computed: InvalidRequest for another ending, ConfigError without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidRequest(f"--plot {path} must end in {' or '.join(FORMATS)}", param="plot")
    if not path.parent.is_dir():
        raise InvalidRequest(f"--plot {path}: there is no folder {path.parent}", param="plot")
    _figure()


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib, which is not installed: pip install 'carbonq[plot]'") from error
    return Figure


def draw(path: Path, made: Sequence[Outcome], blocks: Blocks, *, title: str) -> None:
    """Draw the policies' grams per kWh with what each saves against the first baseline, and that one's interval."""
    figure = _figure()(figsize=(9, 0.55 * len(made) + 1.8), layout="constrained")
    axes = figure.subplots()
    base = next((one for one in made if one.name in BASELINES), made[0])
    for place, one in enumerate(made):
        color = _GREY if one.name in BASELINES else _BLUE if one.name == "perfect" else _GREEN
        axes.barh(place, one.g_per_kwh, color=color)
        share = saving(one, base, blocks)
        said = f" {one.g_per_kwh:.1f}"
        if one is not base and share.pct is not None:
            said += f"  saves {share.pct:.1f} % vs {base.name}"
            if share.low is not None and share.high is not None:
                said += f" [{share.low:.1f}, {share.high:.1f}]"
        axes.text(one.g_per_kwh, place, said + (f", {one.missed} jobs late" if one.missed else ""), va="center")
    axes.set_yticks(range(len(made)), [one.name for one in made])
    axes.invert_yaxis()
    axes.set_xlabel("gCO2e per kWh of IT energy, simulated")
    axes.set_title(title)
    axes.margins(x=0.75)
    _save(figure, path)


def draw_curve(path: Path, points: Sequence[Point], *, title: str) -> None:
    """Draw grams and late jobs against the slots of each region that varies."""
    figure = _figure()(figsize=(9, 6), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    by_region: defaultdict[str, list[Point]] = defaultdict(list)
    for one in points:
        by_region[one.region].append(one)
    for region, mine in by_region.items():
        slots = [one.slots for one in mine]
        upper.plot(slots, [one.outcome.grams / 1000 for one in mine], marker="o", label=region)
        lower.plot(slots, [one.outcome.missed for one in mine], marker="o", label=region)
    upper.set_ylabel("kgCO2e, simulated")
    lower.set_ylabel("jobs late")
    lower.set_xlabel("slots of the region, all others as given")
    upper.legend()
    upper.set_title(title)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
