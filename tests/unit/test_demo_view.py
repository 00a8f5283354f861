from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from rich.console import Console

from carbonq.demo.picture import ChunkPicture, JobPicture, Picture, RegionPicture
from carbonq.demo.view import LiveView, PlainView
from carbonq.units import WINDOW

NOW = datetime(2021, 6, 9, 3, 2, 10, tzinfo=UTC)
START = datetime(2021, 6, 9, 3, tzinfo=UTC)

PICTURE = Picture(
    now=NOW,
    jobs=[JobPicture("embeddings", "running", 400, 2_400), JobPicture("summaries", "planned", 0, 6)],
    chunks=[
        ChunkPicture("embeddings", "running", "norcal", START, 200, 0),
        ChunkPicture("embeddings", "done", "norcal", START, 200, 200),
        ChunkPicture("embeddings", "placed", "socal", START + 3 * WINDOW, 200, 0),
        ChunkPicture("summaries", "waiting", None, None, 1, 0),
    ],
    regions=[
        RegionPicture("norcal", Decimal(400), {START + n * WINDOW: Decimal(400 - 10 * n) for n in range(20)}),
        RegionPicture("socal", None, {}),
    ],
)


def test_the_picture_counts_what_waits_and_what_runs() -> None:
    assert PICTURE.items_waiting == 201
    assert PICTURE.chunks_running == 1
    assert PICTURE.next_window_at == START + timedelta(minutes=15)


def test_the_plain_view_writes_a_line_for_each_change() -> None:
    lines: list[str] = []
    view = PlainView(lines.append)
    with view.live():
        view.draw(PICTURE)
        view.draw(replace(PICTURE, now=NOW + timedelta(seconds=30)))
        view.draw(replace(PICTURE, jobs=[JobPicture("embeddings", "running", 600, 2_400)]))
    assert len(lines) == 2
    assert "03:02:10" in lines[0]
    assert "running: embeddings@norcal" in lines[0]
    assert "MOER norcal 400 g/kWh, socal unknown" in lines[0]


def test_the_live_view_shows_regions_rates_chunks_and_progress() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    view = LiveView(console, "carbonq demo")
    with view.live():
        view.note("hello")
        view.draw(PICTURE)
    text = out.getvalue()
    shown = ("hello", "400/2,400", "norcal", "socal", "MOER now", "400 g/kWh", "unknown", "03:02:10Z", "03:00", "05:00")
    for part in shown:
        assert part in text, part
    assert "██" in text
    assert "··" in text
