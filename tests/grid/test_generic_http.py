"""Any JSON over HTTP, against a provider that plays its answers."""

from __future__ import annotations

import base64
import logging
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from carbonq.errors import ConfigError, SignalUnavailable
from carbonq.grid.generic_http import HttpSource
from carbonq.model import Signal
from tests.grid.provider import Provider, json_answer, make_http

NOW = datetime(2025, 5, 1, 10, 7, tzinfo=UTC)
ROWS = [
    {"at": "2025-05-01T09:00:00+00:00", "data": {"co2": "0.412"}},
    {"at": "2025-05-01T11:30:00+02:00", "data": {"co2": None}},
    {"at": "2025-05-01T10:00Z", "data": {"co2": 0}},
    {"at": "2025-05-01T10:00:00Z", "data": {"co2": 0}},
    {"at": "2025-05-01T10:30:00Z", "data": {}},
    {"at": "2025-05-01T11:00:00Z", "data": {"co2": 0.39}},
]
BODY = {"meta": {"made": "2025-05-01T10:05:00Z"}, "rows": ROWS, "none": []}


def source(provider: Provider, **values: Any) -> HttpSource:
    settled: dict[str, Any] = {
        "zone": "no rth",
        "signal": Signal.MOER,
        "name": "mygrid",
        "url": f"{provider.url}/past/{{zone}}",
        "forecast_url": f"{provider.url}/next?from={{start}}&to={{end}}",
        "rows": "$.rows[*]",
        "time": "at",
        "value": "data.co2",
        "unit": "kg/kWh",
        "gas": "co2",
        "step_s": 1800,
        "setting": "zones.north.marginal",
        **values,
    }
    return HttpSource(make_http(provider, named="mygrid"), **settled)


@pytest.fixture
def grid(provider: Provider) -> Provider:
    provider.on("/past/no%20rth", json_answer(BODY))
    provider.on("/next", json_answer(BODY))
    return provider


def test_a_forecast_is_read_as_the_settings_say(grid: Provider) -> None:
    mine = source(grid, issued_at="$.meta.made", params={"zone": "{zone}"}, headers={"X-Key": "s3cret-head"})
    found = mine.forecast("no rth", NOW)
    assert found is not None
    assert found.start_at == datetime(2025, 5, 1, 9, 0, tzinfo=UTC)
    assert found.values == [412, None, 0, None, 390]
    assert (found.issued_at, found.retrieved_at) == (datetime(2025, 5, 1, 10, 5, tzinfo=UTC), NOW)
    assert (found.source, found.signal, found.gas, found.raw_unit) == ("mygrid", Signal.MOER, "co2", "kg/kWh")
    (asked,) = grid.asked("/next")
    assert asked.params == {"from": "2025-05-01T10:05:00Z", "to": "2025-05-04T10:05:00Z", "zone": "no rth"}
    assert asked.headers["X-Key"] == "s3cret-head"
    assert mine.forecast("no rth", NOW - timedelta(minutes=8)) is None


def test_an_unstamped_forecast_is_issued_when_it_is_fetched(grid: Provider) -> None:
    mine = source(grid)
    found = mine.forecast("no rth", NOW)
    assert found is not None
    assert found.issued_at == NOW
    assert mine.forecast("no rth", NOW + timedelta(minutes=5)) is found
    assert mine.forecast("no rth", NOW - timedelta(seconds=1)) is None
    assert len(grid.requests) == 1


def test_observations_are_read_and_marked_as_the_settings_say(grid: Provider) -> None:
    mine = source(grid, is_estimated=True, may_settle=False, method="lifecycle", forecast_url=None)
    found = mine.observations("no rth", NOW - timedelta(hours=2), NOW, NOW)
    assert [(f"{one.window_at:%H:%M}", one.g_per_kwh) for one in found] == [("09:00", 412), ("10:00", 0)]
    assert {(one.is_estimated, one.may_settle, one.method) for one in found} == {(True, False, "lifecycle")}
    assert mine.forecast("no rth", NOW) is None
    assert [one.target for one in grid.requests] == ["/past/no%20rth"]


def test_spans_are_cut_only_where_the_template_has_one(grid: Provider) -> None:
    start = NOW - timedelta(days=3)
    source(grid, span_h=24).observations("no rth", start, NOW, NOW)
    assert len(grid.requests) == 1
    source(grid, span_h=24, params={"since": "{start}", "until": "{end}"}).observations("no rth", start, NOW, NOW)
    spans = [(one.params["since"], one.params["until"]) for one in grid.requests[1:]]
    assert spans[0] == ("2025-04-28T10:07:00Z", "2025-04-29T10:06:59Z")
    assert len(spans) == 3


@pytest.mark.parametrize("rows", ["$.rows", "rows", "$['rows'][*]", "$.rows.*"])
def test_rows_may_be_named_in_many_ways(grid: Provider, rows: str) -> None:
    assert len(source(grid, rows=rows).observations("no rth", NOW - timedelta(hours=2), NOW, NOW)) == 2


def test_rows_may_be_lists_and_the_answer_one_list(grid: Provider) -> None:
    grid.on("/past/no%20rth", json_answer([["2025-05-01T10:00:00Z", 0.4]]))
    mine = source(grid, rows="$[*]", time="$[0]", value="$[1]")
    (found,) = mine.observations("no rth", NOW - timedelta(hours=1), NOW, NOW)
    assert found.g_per_kwh == 400


@pytest.mark.parametrize("rows", ["$.none[*]", "$.none", "$.none.*"])
def test_an_empty_list_is_no_row_and_no_error(grid: Provider, rows: str) -> None:
    assert source(grid, rows=rows).observations("no rth", NOW - timedelta(hours=1), NOW, NOW) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"rows": "$.data[*]"},
            r"marginal\.rows '\$\.data\[\*\]' matches nothing in the answer, which has the fields meta",
        ),
        ({"rows": "$.data"}, r"marginal\.rows '\$\.data' matches nothing"),
        ({"rows": "$.meta.made[*]"}, r"marginal\.rows '\$\.meta\.made\[\*\]' matches nothing"),
        ({"time": "when"}, r"marginal\.time 'when' matches nothing in the answer, which has the fields at, data"),
        ({"time": "*"}, r"marginal\.time '\*' matches 2 values in row 1, not one"),
        ({"value": "co2"}, r"marginal\.value 'co2' matches nothing in any of 6 rows"),
        ({"value": "data"}, r"marginal\.value 'data' of row 1 is .*, not a number"),
        ({"issued_at": "$.meta.then"}, r"marginal\.issued_at '\$\.meta\.then' matches nothing"),
        ({"issued_at": "$.rows[*].at"}, "gives 5 different times of issue"),
        ({"unit": "g/kWh", "value": "at"}, "is '2025-05-01T09:00:00.00:00', not a number"),
        ({"unit": "lb/MWh", "step_s": 2400}, "is no multiple of 2400 s"),
        ({"unit": "t/kWh"}, "more than any grid's"),
    ],
)
def test_answers_that_do_not_fit_name_the_setting(grid: Provider, values: dict[str, Any], words: str) -> None:
    with pytest.raises(SignalUnavailable, match=words):
        source(grid, **values).forecast("no rth", NOW)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"url": "{zone}/x"}, r"zones\.north\.marginal\.url is no address; it begins with https://"),
        ({"url": "ftp://x/y"}, r"marginal\.url is no address"),
        ({"url": "https://[x/y"}, r"marginal\.url is no address: "),
        ({"url": "https://{zone}.x/y"}, "placeholder in its host"),
        (
            {"url": "https://x/{area}"},
            r"marginal\.url has the placeholder \{area\}; there are \{zone\}, \{start\}, \{end\}",
        ),
        ({"url": "https://x/{start:%H}"}, r"the placeholder \{start\}"),
        ({"url": "https://x/{}"}, r"the placeholder \{\}"),
        (
            {"forecast_url": "https://x/{zone"},
            r"marginal\.forecast_url is no template: .*a brace that is meant is written",
        ),
        ({"params": {"from": "{begin}"}}, r"marginal\.params\.from has the placeholder \{begin\}"),
        ({"url": "https://x/y?a=1&a=2"}, r"marginal\.url names a parameter twice"),
        ({"url": None, "forecast_url": None}, r"marginal\.url and zones\.north\.marginal\.forecast_url are both unset"),
        ({"rows": "$.[", "value": "x"}, r"marginal\.rows '\$\.\[' is no JSON path: expected"),
        ({"value": " "}, r"marginal\.value"),
        ({"unit": "percentile"}, r"marginal\.unit is in percentile: a relative figure"),
        ({"unit": "g"}, r"marginal\.unit is in 'g', which is unknown; known are g/kWh"),
        ({"unit": "gCO2eq/kWh"}, r"marginal\.unit 'gCO2eq/kWh' counts co2e, but gas is 'co2'"),
        ({"url": "https://api.watttime.org/v3/signal-index"}, "signal index, a percentile"),
    ],
)
def test_wrong_settings_are_sentences_naming_them(provider: Provider, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        source(provider, **values)


def test_secrets_of_address_parameters_and_headers_are_shown_nowhere(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = {"login": "me-user:pass-w0rd", "query": "query-s3cret", "param": "param-s3cret", "head": "head-s3cret"}
    address = provider.url.replace("://", f"://{secrets['login']}@")
    mine = source(
        provider,
        url=f"{address}/past?key={secrets['query']}",
        forecast_url=None,
        params={"token": secrets["param"], "from": "{start}"},
        headers={"X-Key": secrets["head"]},
    )
    provider.on("/past", json_answer({"error": f"no: {secrets} pass-w0rd me-user"}, 400))
    with pytest.raises(
        SignalUnavailable, match=r"http://127\.0\.0\.1:\d+/past answered 400 Bad Request: no: "
    ) as caught:
        mine.observations("no rth", NOW - timedelta(hours=1), NOW, NOW)
    (asked,) = provider.requests
    assert asked.params == {"key": "query-s3cret", "token": "param-s3cret", "from": "2025-05-01T09:07:00Z"}
    assert asked.headers["Authorization"] == f"Basic {base64.b64encode(b'me-user:pass-w0rd').decode()}"
    for secret in ("me-user", "pass-w0rd", "query-s3cret", "param-s3cret", "head-s3cret"):
        assert secret not in str(caught.value)
        assert secret not in caplog.text


def test_check_says_the_factor_and_what_does_not_settle(grid: Provider) -> None:
    notes = source(grid, unit="lb/MWh").check("no rth", NOW)
    assert [(note.level.value, note.text) for note in notes] == [
        ("ok", "mygrid is readable; values are lb/MWh x 0.45359237 = g/kWh, every 1800 s")
    ]
    notes = source(grid, url=None).check("no rth", NOW)
    assert notes[1].text == "entries do not settle by mygrid: it has no url of observations"
    grid.on("/past/no%20rth", json_answer({"rows": []}))
    notes = source(grid, may_settle=False).check("no rth", NOW)
    assert [note.text for note in notes[1:]] == [
        "mygrid has no observation of the last 6 h",
        "entries do not settle by mygrid: its settings say so",
    ]
    grid.on("/next", json_answer({"rows": [{"at": "2025-05-01T10:00:00Z", "data": {"co2": "n/a"}}]}))
    (note,) = source(grid).check("no rth", NOW)
    assert note.level == "fail"


def test_values_like_an_index_are_warned_of(grid: Provider) -> None:
    times = [f"2025-05-01T{10 + i // 2}:{i % 2 * 30:02}:00Z" for i in range(14)]
    grid.on("/next", json_answer({"rows": [{"at": at, "data": {"co2": i}} for i, at in enumerate(times)]}))
    notes = source(grid, unit="g/kWh", url=None).check("no rth", NOW)
    assert "all 14 values lie within 0 and 100" in notes[-1].text


def test_rows_further_apart_than_the_stated_step_are_warned_of(grid: Provider) -> None:
    rows = [{"at": f"2025-05-01T{10 + i}:00:00Z", "data": {"co2": 200 + i}} for i in range(4)]
    grid.on("/next", json_answer({"rows": rows}))
    notes = source(grid, url=None, unit="g/kWh", step_s=300).check("no rth", NOW)
    assert "33 of the 37 steps of its forecast have no value; is step_s right?" in [note.text for note in notes]
    assert not [
        note for note in source(grid, url=None, unit="g/kWh", step_s=3600).check("no rth", NOW) if "step_s" in note.text
    ]


def test_conversions_are_exact(grid: Provider) -> None:
    found = source(grid, unit="lb/MWh").observations("no rth", NOW - timedelta(hours=2), NOW, NOW)
    assert found[0].g_per_kwh == Decimal("0.412") * Decimal("0.45359237")
    assert found[0].raw == Decimal("0.412")
