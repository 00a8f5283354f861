from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from carbonq.errors import InvalidRequest
from carbonq.model import Signal
from carbonq.replay.arrivals import Span, drawn
from carbonq.replay.grids import Grid, read
from carbonq.replay.rows import Source
from carbonq.replay.traces import Assumed, read_trace
from carbonq.replay.work import Jobs, pieces
from tests.unit import replays
from tests.unit.replays import FIRST

#: Recorded files that do not belong to the project: beside the checkout, or where this says.
SHARED = Path(os.environ.get("RECORDED_GRIDS", Path(__file__).parents[3] / "shared" / "data"))


def put(path: Path, text: str) -> Source:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return Source(path)


def grid(*intensity: Source, forecast: tuple[Source, ...] = ()) -> Grid:
    return read(intensity, forecast, signal=Signal.MOER)


T0, T1, T2 = (replays.stamp(FIRST + 6 * k) for k in range(3))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_wide_files_are_read_with_their_gaps(tmp_path: Path, name: str) -> None:
    made = grid(put(tmp_path / name, f"time_utc,X,Y\n{T0},1,2.5\n{T1},,3\n{T2},4,5\n"))
    assert made.zones == ("X", "Y")
    assert made.steps == {"X": 6, "Y": 6}
    assert made.span() == (FIRST, FIRST + 18)
    rates = made.rates(["Y", "X"], FIRST - 1, FIRST + 19)
    assert np.isnan(rates[:, [0, -1]]).all()
    assert np.isnan(rates[1, 7:13]).all()
    assert rates[0, 1:19].tolist() == [2.5] * 6 + [3.0] * 6 + [5.0] * 6


def test_long_files_are_read_and_columns_chosen(tmp_path: Path) -> None:
    text = f"region,time_utc,direct,lifecycle\nX,{T0},1,2\nX,{T2},3,4\nY,{T0},5,6\n"
    put(tmp_path / "a.csv", text)
    made = grid(Source.parse(f"{tmp_path / 'a.csv'}:lifecycle"))
    # A gap of an hour between two values of X: its step is not known to be less.
    assert made.steps["X"] == 12
    assert made.observed["X"].last() == (FIRST + 23, 4.0)
    with pytest.raises(
        InvalidRequest, match=r"a\.csv, line 1: has 2 columns of values \(direct, lifecycle\); say which"
    ):
        grid(Source(tmp_path / "a.csv"))


def test_columns_of_a_wide_file_are_renamed(tmp_path: Path) -> None:
    put(tmp_path / "gb.csv", f"time_utc,actual,forecast,index\n{T0},180,183,moderate\n{T1},182,,low\n")
    made = grid(Source.parse(f"{tmp_path / 'gb.csv'}:actual=GB"))
    assert made.zones == ("GB",)
    with pytest.raises(InvalidRequest, match=r"line 2: index is 'moderate', which is no number"):
        grid(Source(tmp_path / "gb.csv"))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ("time_utc\n", "no column beside time_utc"),
        ("time_utc,X\n", "holds no row"),
        ("region,time_utc,v\n", "holds no row"),
        ("when,X\n2021-01-01T00:00Z,1\n", r"known are time_utc,ZONE"),
        ("time_utc,X,X\n", "the column 'X' twice"),
        (f"time_utc,X\n{T0},1,2\n", r"line 2: has 3 cells, the header 2"),
        (f"time_utc,X\n{T0},-1\n", r"line 2: X is -1 g/kWh; it must lie in 0\.\.10,000"),
        (f"time_utc,X\n{T0},1e5\n", r"line 2: X is 1e5"),
        (f"time_utc,X\n{T0},nan\n", r"leave a missing value empty"),
        (f"time_utc,X\n{T0},inf\n", r"leave a missing value empty"),
        (f"time_utc,X\n{T0},much\n", r"'much', which is no number"),
        ("time_utc,X\n2021-01-01T00:01Z,1\n", "multiple of 5 minutes"),
        ("time_utc,X\n2021-01-01T00:00,1\n", "has no time zone"),
        ("time_utc,X\nmorning,1\n", "line 2: time_utc is 'morning'"),
        (f"time_utc,X\n{T0},1\n{T0},2\n", r"line 3: X has 2 g/kWh at a time at which it had 1 before"),
        ("time_utc,X\n2021-01-01T00:00Z,1\n2021-01-01T02:00Z,1\n", "a value every 120 minutes"),
        ("time_utc,X\n2021-01-01T00:00Z,1\n2021-01-01T00:25Z,1\n", "a value every 25 minutes"),
        ("time_utc,X\n2021-01-01T00:05Z,1\n2021-01-01T00:35Z,1\n", "do not lie on multiples of its 30 minutes"),
    ],
)
def test_bad_intensities_name_file_line_and_limit(tmp_path: Path, text: str, match: str) -> None:
    source = put(tmp_path / "bad.csv", text)
    with pytest.raises(InvalidRequest, match=match) as caught:
        grid(source)
    assert str(tmp_path / "bad.csv") in caught.value.message


def test_a_file_that_is_cut_or_not_there_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(
        ("time_utc,X\n" + "".join(f"{replays.stamp(FIRST + k)},{k % 7}\n" for k in range(2000))).encode()
    )
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "no.csv.gz").write_bytes(b"time_utc,X\n")
    for name in ("cut.csv.gz", "no.csv.gz", "away.csv"):
        with pytest.raises(InvalidRequest, match=name):
            grid(Source(tmp_path / name))


def test_forecasts_as_issued_in_their_three_shapes(tmp_path: Path) -> None:
    wide = put(tmp_path / "w.csv", f"time_utc,X,Y,GB\n{T0},1,1,1\n{T1},1,1,1\n")
    leads = put(tmp_path / "a.csv", f"region,generated_at_utc,actual,f005,f010\nX,{T0},9,11,12\nX,{T1},9,,14\n")
    text = f"region,issue_utc,lead_h,actual_direct,forecast_direct\nY,{T0},0,9,21\nY,{T0},1,9,22\n"
    put(tmp_path / "b.csv", text)
    put(
        tmp_path / "c.csv",
        "captured_utc,from_utc,lead_min,forecast,actual\n2021-06-10T00:01Z,2021-06-10T00:00Z,0,69,78\n"
        "2021-06-10T00:01Z,2021-06-10T00:30Z,30,72,82\n",
    )
    others = (Source.parse(f"{tmp_path / 'b.csv'}:direct"), Source.parse(f"{tmp_path / 'c.csv'}:forecast=GB"))
    made = grid(wide, forecast=(leads, *others))
    first = made.issued["X"].at(FIRST)
    assert first is not None
    assert first.first_window == FIRST + 1
    assert first.values.tolist() == [11.0, 12.0]
    assert made.issued["X"].at(FIRST - 1) is None
    later = made.issued["X"].at(FIRST + 7)
    assert later is not None
    assert later.one(FIRST + 8) == 14.0
    assert np.isnan(later.one(FIRST + 7))
    hourly = made.issued["Y"].at(FIRST)
    assert hourly is not None
    assert hourly.values.tolist() == [21.0] * 12 + [22.0] * 12
    # Caught a minute after midnight, it is not known at midnight.
    assert made.issued["GB"].at(FIRST) is None
    caught = made.issued["GB"].at(FIRST + 1)
    assert caught is not None
    assert (caught.first_window, caught.one(FIRST + 6)) == (FIRST, 72.0)
    ages = made.issued["GB"].age(np.array([FIRST, FIRST + 1, FIRST + 5]))
    assert ages.tolist()[1:] == [0, 4]
    assert ages[0] > 10**9


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (f"region,generated_at_utc,f005,f015,f020\nX,{T0},1,1,1\n", "columns of leads"),
        (f"region,generated_at_utc,f005,f010\nX,{T0},1,x\n", r"line 2: f010 is 'x'"),
        (f"region,generated_at_utc,f005,f010\nX,{T0},1,1\nX,{T0},1,1\n", "line 3: X has a second forecast"),
        (f"region,issue_utc,lead_h,forecast_direct\nX,{T0},0.5,1\n", "line 2: lead_h is '0.5'"),
        (f"region,issue_utc,lead_h,forecast_direct\nX,{T0},999,1\n", "whole hours from 0 to 240"),
        (f"region,issue_utc,lead_h,forecast_direct\nX,{T0},0,1\nX,{T0},0,1\n", "twice"),
        (f"region,issue_utc,lead_h,forecast_direct,forecast_lifecycle\nX,{T0},0,1,1\n", "say which"),
        (f"captured_utc,from_utc,forecast\n{T0},{T0},1\n", "names no zone"),
        ("time_utc,X\n", "forecasts as issued are known as"),
        (f"region,generated_at_utc,f005,f010\nZ,{T0},1,1\n", "none of which is among X"),
        ("region,generated_at_utc,f005,f010\n", "holds no row"),
    ],
)
def test_bad_forecasts_name_file_line_and_limit(tmp_path: Path, text: str, match: str) -> None:
    wide = put(tmp_path / "w.csv", f"time_utc,X\n{T0},1\n{T1},1\n")
    with pytest.raises(InvalidRequest, match=match):
        grid(wide, forecast=(put(tmp_path / "f.csv", text),))


def test_arrivals_in_words_are_drawn_with_a_seed() -> None:
    end = FIRST + 10 * 288
    jobs = drawn("50 jobs of 30m..2h with slack 1h|4h", first=FIRST, end=end, seed=3)
    again = drawn("50 jobs of 30m..2h with slack 1h|4h", first=FIRST, end=end, seed=3)
    other = drawn("50 jobs of 30m..2h with slack 1h|4h", first=FIRST, end=end, seed=4)
    assert (jobs.release == again.release).all()
    assert (jobs.due == again.due).all()
    assert (jobs.release != other.release).any()
    assert (np.diff(jobs.release) >= 0).all()
    assert jobs.release.min() >= FIRST
    assert jobs.due.max() <= end
    assert 6 <= jobs.windows.min() < jobs.windows.max() <= 24
    assert set((jobs.due - jobs.release - jobs.windows).tolist()) == {12, 48}
    poisson = drawn("poisson 24/d of 1 hour with slack 2 hours", first=FIRST, end=end, seed=1)
    assert 180 < poisson.count < 300
    assert set(poisson.windows.tolist()) == {12}
    nightly = drawn("nightly 3 jobs of 2h at 01:00 with slack 8h", first=FIRST + 1, end=end, seed=1)
    assert nightly.count == 30
    assert set((nightly.release % 288).tolist()) == {12}


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("some jobs", "not understood; write '1000 jobs of 2h with slack 24h'"),
        ("5 jobs of 2 with slack 1h", "length is '2'; write it as 30m, 2h or 1d"),
        ("5 jobs of 0m with slack 1h", "must be more than 0"),
        ("5 jobs of 1h with slack 31d", "at most 30 days"),
        ("5 jobs of 2h..1h with slack 1h", "ends before it begins"),
        ("5 jobs of 1h with slack 20d", "the recorded time is 240 h"),
        ("0 jobs of 1h with slack 1h", "bring no job"),
        ("3_000_000 jobs of 1h with slack 1h", "at most 2,000,000"),
        ("nightly 1 job of 1h at 25:00 with slack 1h", "a time of day"),
        ("poisson 90000/h of 5m with slack 1h", "at most 2,000,000"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(spec: str, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        drawn(spec, first=FIRST, end=FIRST + 2880, seed=0)


def test_jobs_become_pieces_with_all_their_energy() -> None:
    jobs = Jobs(*(np.array(column) for column in ([5, 9], [7, 3], [2, 1], [99, 90])))
    cut = pieces(jobs, power_w=600.0, piece=3)
    assert cut.windows.tolist() == [3, 3, 1, 3, 3, 1, 3]
    assert cut.job.tolist() == [0] * 6 + [1]
    assert cut.release.tolist() == [5] * 6 + [9]
    assert int(cut.energy_uj.sum()) == 17 * 300 * 600 * 10**6
    whole = pieces(jobs, power_w=600.0, piece=None)
    assert whole.windows.tolist() == [7, 7, 3]
    assert whole.energy_uj.sum() == cut.energy_uj.sum()
    with pytest.raises(InvalidRequest, match="more than 5,000,000"):
        pieces(Jobs(*(np.array([one]) for one in (0, 8000, 1000, 9000))), power_w=1.0, piece=1)


def test_traces_are_read_in_their_three_shapes(tmp_path: Path) -> None:
    slack = Span.parse("24h", "slack")
    pai = put(tmp_path / "a.csv", "arrival_h,length_h,units\n0.0,25.4081,1\n0.5769,0.0836,3\n")
    jobs = read_trace(pai, first=FIRST, slack=slack, seed=0)
    assert jobs.release.tolist() == [FIRST, FIRST + 7]  # 0.5769 h is 34.6 minutes
    assert jobs.windows.tolist() == [305, 2]
    assert jobs.units.tolist() == [1, 3]
    assert (jobs.due - jobs.release - jobs.windows).tolist() == [288, 288]
    text = "arrival_s,input_tokens,output_tokens\n0.0,1600000,80000\n299,0,80000\n601,8000,0\n"
    tokens = read_trace(put(tmp_path / "b.csv", text), first=FIRST, slack=slack, seed=0, assumed=Assumed(8000, 800))
    # 200 s + 100 s + 100 s in the first window; a second in the third.
    assert tokens.release.tolist() == [FIRST + 1, FIRST + 3]
    assert tokens.windows.tolist() == [2, 1]
    dated = f"time_utc,length_h,deadline_utc\n{T0},0.5,{T2}\n{T1},0.5,\n"
    own = read_trace(put(tmp_path / "c.csv", dated), first=0, slack=slack, seed=0)
    assert own.due.tolist() == [FIRST + 12, FIRST + 6 + 6 + 288]
    with pytest.raises(InvalidRequest, match="has no deadlines; give --slack"):
        read_trace(pai, first=FIRST, slack=None, seed=0)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("arrival_h,length_h,units\n0,0,1\n", "line 2: length_h is '0'; it must be more than 0 and at most 720"),
        ("arrival_h,length_h,units\n0,1,0.5\n", "line 2: units is '0.5'"),
        ("arrival_h,length_h,units\n-1,1,1\n", "line 2: arrival_h is '-1'"),
        ("arrival_h,length_h,units\n", "holds no job"),
        ("arrival_s,input_tokens,output_tokens\n0,-5,1\n", "line 2: a request's tokens"),
        (f"time_utc,length_h,deadline_utc\n{T0},2,{T1}\n", "line 2: deadline_utc is before the job could end"),
        ("a,b\n", "known are arrival_h,length_h,units"),
    ],
)
def test_bad_traces_name_file_line_and_limit(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        read_trace(put(tmp_path / "t.csv", text), first=0, slack=None, seed=0)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no recorded grids beside the checkout (RECORDED_GRIDS names a folder)")
def test_recorded_files_of_others_are_read(tmp_path: Path) -> None:
    def head(name: str, lines: int) -> Path:
        with gzip.open(SHARED / name, "rt", encoding="utf-8") as source:
            path = tmp_path / name.removesuffix(".gz")
            path.write_text("".join(next(source) for _ in range(lines)), encoding="utf-8")
        return path

    sgip, issued = (
        head("moer_sgip_caiso_5min_actual.csv.gz", 500),
        head("moer_sgip_caiso_5min_forecast_asissued.csv.gz", 500),
    )
    assert grid(Source(sgip), forecast=(Source(issued),)).steps["SGIP_CAISO_SCE"] == 1
    hourly, ahead = (
        head("carboncast_hourly_actual_2020_2021.csv.gz", 500),
        head("carboncast_hourly_96h_forecast_2021H2.csv.gz", 500),
    )
    made = grid(Source.parse(f"{hourly}:direct"), forecast=(Source.parse(f"{ahead}:direct"),))
    assert made.steps == {"CISO": 12}
    assert made.issued["CISO"].values.shape[1] == 96
    gb, caught = (
        head("uk_national_30min_2020_actual_forecast.csv.gz", 100),
        head("uk_national_48h_forecast_asissued_2023-03.csv.gz", 100),
    )
    assert grid(Source.parse(f"{gb}:actual=GB"), forecast=(Source.parse(f"{caught}:forecast=GB"),)).steps == {"GB": 6}
    pai = read_trace(
        Source(head("batch_jobs_alibaba_pai_8weeks.csv.gz", 100)), first=0, slack=Span.parse("1d", "slack"), seed=0
    )
    assert pai.count == 99
    azure = read_trace(
        Source(head("llm_azure2023_code.csv.gz", 2000)), first=0, slack=Span.parse("1d", "slack"), seed=0
    )
    assert azure.count >= 1
