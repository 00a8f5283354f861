"""What the database keeps of the settings, who may change it, and how a process that joins is compared with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from carbonq import __version__, config, wiring
from carbonq.errors import ConfigError
from carbonq.services import installation
from carbonq.services.installation import Shared
from carbonq.store import admin_log, clocks, regions
from carbonq.store import installation as rows
from carbonq.store.database import Database

REGIONS = {"se": {"zone": "SE", "slots": 1, "pue": "1.20"}, "no": {"zone": "NO"}}
ZONES = {"SE": {"marginal": {"source": "csv", "path": "/srv/se.csv"}}, "NO": {"marginal": {"source": "uk"}}}
MODELS = {"mine": {"engine": "llama_cpp", "path": "/srv/mine.gguf"}}


def url(database: Database) -> dict[str, Any]:
    return {"database_url": database.engine.url.render_as_string(hide_password=False)}


@pytest.fixture
def installed(database: Database, tmp_path: Path) -> Database:
    settings = config.load(
        **url(database),
        data_dir=tmp_path,
        regions=REGIONS,
        zones=ZONES,
        models=MODELS,
        chunk_fill=0.5,
        api_key="secret",
    )
    runtime, _ = wiring.prepare(settings)
    runtime.close()
    return database


def join(database: Database, **given: Any) -> config.Settings:
    return wiring.join(config.given(**url(database), **given))


def test_a_host_that_says_nothing_takes_all_that_is_shared(installed: Database) -> None:
    settings = join(installed)
    assert sorted(settings.regions) == ["no", "se"]
    assert settings.home_region == "se"  # the first one, whatever order the database gives
    assert str(settings.regions["se"].pue) == "1.2"
    assert str(settings.models["mine"].path) == "/srv/mine.gguf"
    assert settings.chunk_fill == 0.5
    assert settings.api_key is None
    with installed.read() as tx:
        kept = rows.load(tx)
    assert kept is not None
    assert kept.software_version == __version__
    assert wiring.make_shared(settings).digest == kept.settings_digest


def test_what_is_of_a_host_is_laid_over_and_not_compared(installed: Database) -> None:
    settings = join(
        installed,
        regions={"se": {"gpus": ["0"]}},
        models={"mine": {"path": "/elsewhere/mine.gguf"}},
        zones={"SE": {"marginal": {"source": "csv", "path": "here.csv"}}},
    )
    assert (settings.regions["se"].gpus, settings.regions["se"].slots) == (("0",), 1)
    assert str(settings.models["mine"].path) == "/elsewhere/mine.gguf"
    assert settings.models["mine"].engine == "llama_cpp"
    with installed.read() as tx:
        kept = rows.load(tx)
    assert kept is not None and wiring.make_shared(settings).digest == kept.settings_digest


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"regions": {"se": {"slots": 2}}}, "this host says regions.se.slots = 2, the installation says 1"),
        ({"regions": {"dk": {"zone": "SE"}}}, "this host has regions.dk, the installation has not"),
        ({"home_region": "no"}, "this host says home_region = no, the installation says se"),
        (
            {"zones": {"SE": {"marginal": {"source": "recorded"}}}},
            "this host says zones.SE.marginal.0.source = recorded, the installation says csv",
        ),
        (
            {"zones": {"NO": {"marginal": [{"source": "uk"}, {"source": "recorded"}]}}},
            "this host says zones.NO.marginal = 2 of them, the installation says 1 of them",
        ),
        ({"models": {"mine": {"tier": 2}}}, "this host says models.mine.tier = 2, the installation says 1"),
        ({"queue_prefix": "x."}, "this host says queue_prefix = x., the installation says ''"),
    ],
)
def test_a_difference_that_decides_is_named_and_refused(
    sqlite_database: Database, tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    settings = config.load(**url(sqlite_database), data_dir=tmp_path, regions=REGIONS, zones=ZONES, models=MODELS)
    wiring.prepare(settings)[0].close()
    with pytest.raises(ConfigError) as error:
        join(sqlite_database, **given)
    assert sentence in error.value.message
    assert "carbonq config push" in error.value.message


def test_the_same_said_again_is_no_difference(installed: Database) -> None:
    join(
        installed, regions=REGIONS, zones=ZONES, models=MODELS, chunk_fill=0.5, home_region="se", isolate_tenants=False
    )


def test_another_difference_warns_and_holds_here(installed: Database, caplog: pytest.LogCaptureFixture) -> None:
    assert join(installed, chunk_fill=0.7).chunk_fill == 0.7
    assert "this host says chunk_fill = 0.7, the installation says 0.5; here the former holds" in caplog.text


def test_nobody_takes_the_demo_regions_in_silence(database: Database) -> None:
    with database.write() as tx:
        clocks.ensure(tx, wiring.GridClock.real())
    with pytest.raises(ConfigError, match="keeps no regions yet and this host has none"):
        join(database)
    assert sorted(join(database, regions=REGIONS, zones=ZONES).regions) == ["no", "se"]


def test_whoever_may_change_them_takes_what_is_kept_when_it_has_none(installed: Database, tmp_path: Path) -> None:
    settings = wiring.settle(config.given(**url(installed), data_dir=tmp_path))
    assert sorted(settings.regions) == ["no", "se"]
    own = wiring.settle(config.given(**url(installed), regions={"se": {"zone": "SE"}}, zones={"SE": {}}))
    assert list(own.regions) == ["se"]
    assert own.chunk_fill == 0.6


def test_a_push_says_what_changed_and_reaches_the_regions(installed: Database, tmp_path: Path) -> None:
    changed = config.load(**url(installed), regions={**REGIONS, "se": {"zone": "SE", "slots": 3}}, zones=ZONES)
    said = wiring.push(changed, actor="anna@host")
    assert "regions.se.slots: the default -> 3" in said
    assert "regions.se.pue: 1.2 -> the default" in said
    assert "chunk_fill: 0.5 -> the default" in said
    assert wiring.push(changed, actor="anna@host") == []
    with installed.read() as tx:
        (logged,) = admin_log.page(tx)
        assert (logged.actor, logged.action, logged.after) == ("anna@host", "config.pushed", {"changed": said})
        assert {one.name: one.slots for one in regions.load_all(tx, worker_alive_s=1)} == {"no": 1, "se": 3}


def test_what_a_newer_version_keeps_does_no_harm(installed: Database) -> None:
    with installed.write() as tx:
        kept = rows.load(tx)
        assert kept is not None
        newer = {**kept.settings, "later": {"x": 1}}
        newer["regions"] = {name: {**one, "later": 1} for name, one in newer["regions"].items()}
        rows.put(tx, newer, "d", software_version="9")
    assert sorted(join(installed).regions) == ["no", "se"]


def test_the_digest_knows_no_order() -> None:
    assert installation.digest({"a": 1, "b": {"c": 2, "d": 3}}) == installation.digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert installation.digest({"a": 1}) != installation.digest({"a": 2})


def test_a_put_without_a_change_changes_nothing(database: Database) -> None:
    shared = Shared({"a": 1, "regions": {"se": {"gpus": ["0"]}}}, {"a": 1})
    with database.write() as tx:
        assert installation.put(tx, shared) == []
        before = rows.load(tx)
        assert installation.put(tx, shared) == []
        assert rows.load(tx) == before
        assert installation.put(tx, Shared({"a": 2}, {"a": 2})) == [
            "a: 1 -> 2",
            "regions.se.gpus: ['0'] -> the default",
        ]


@pytest.mark.parametrize("ahead_s", [-30.0, 0.0, 30.0])
def test_the_clocks_difference_is_measured(database: Database, ahead_s: float) -> None:
    offset_s = installation.clock_offset_s(database, lambda: datetime.now(UTC) + timedelta(seconds=ahead_s))
    assert offset_s == pytest.approx(ahead_s, abs=1.0)


def test_a_clock_too_far_off_is_refused_and_a_doubtful_one_warns() -> None:
    assert installation.check_clock(0.1, limit_s=2.0) is None
    warning = installation.check_clock(-1.0, limit_s=2.0)
    assert warning is not None and "1 s behind the database's" in warning
    with pytest.raises(ConfigError, match=r"clock is 12\.3 s ahead of the database's; max_clock_offset_s allows 2 s"):
        installation.check_clock(12.34, limit_s=2.0)


def test_a_process_on_a_host_with_a_wrong_clock_does_not_start(
    installed: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "clock_offset_s", lambda _db: -3.5)
    with pytest.raises(ConfigError, match=r"3\.5 s behind the database's"):
        join(installed)
    assert join(installed, max_clock_offset_s=4.0).max_clock_offset_s == 4.0
