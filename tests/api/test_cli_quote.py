"""``carbonq quote`` on a real API and a real database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from carbonq.cli import main
from carbonq.cli.quote import show
from carbonq.errors import InvalidRequest
from tests.api.harness import CHATTER, Harness
from tests.api.test_quotes import feed


@pytest.fixture
def api(harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.acme)
    feed(harness)
    return harness


def run(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main.app, ["quote", *words], input=text)


def quoted(*words: str, text: str | None = None) -> Any:
    found = run(*words, "--json", text=text)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_every_shape_of_input(api: Harness, tmp_path: Path) -> None:
    (tmp_path / "docs.txt").write_text("one document\nand another\n")
    documents = quoted(str(tmp_path / "docs.txt"))
    assert (documents["items"], documents["model"], documents["asked"]) == (2, "wordllama-256", None)
    (tmp_path / "docs.csv").write_text("title,body\na,some text\nb,more text\nc,most\n")
    summaries = quoted(str(tmp_path / "docs.csv"), "--column", "body", "--kind", "summarize", "--deadline", "6h")
    assert (summaries["items"], summaries["model"], summaries["endpoint"]) == (3, CHATTER, "/v1/chat/completions")
    by_model = quoted("-", "--model", CHATTER, text='{"id": "a", "text": "some text"}\n')
    assert by_model["endpoint"] == "/v1/chat/completions"
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "wordllama-256", "input": "x"},
    }
    batch = quoted("-", text=json.dumps(line) + "\n")
    assert (batch["items"], batch["endpoint"], batch["model"]) == (1, "/v1/embeddings", "wordllama-256")
    counted = quoted("--items", "7", "--tokens", "700", "--region", "se", "--deadline", "90m")
    assert (counted["items"], counted["est_tokens"], counted["asked"]["regions"]) == (7, 700, ["se"])


def test_the_text_names_baseline_saving_signal_and_doubt(api: Harness) -> None:
    shown = run("--items", "100", "--tokens", "100000", "--model", CHATTER, "--deadline", "6h")
    assert shown.exit_code == 0
    facts = {line.split("  ")[0].strip(): line for line in shown.stdout.splitlines()[:6]}
    assert set(facts) == {"work", "energy", "baseline", "by 18:00Z", "saving", "deadline"}
    assert "100 items, about 100,000 tokens" in facts["work"] and "nothing ran there yet" in facts["energy"]
    assert "at home in fr, first come first served" in facts["baseline"]
    assert "%) less than the baseline's" in facts["saving"] and "can be met" in facts["deadline"]
    head = next(line for line in shown.stdout.splitlines() if line.startswith("finished within"))
    assert head.split("  ")[0] == "finished within" and "home (fr)" in head and "all regions" in head
    assert "marginal (MOER) rates" in shown.stdout and "has not been learned yet" in shown.stdout
    assert "starting value" in shown.stderr
    late = run("--items", "900", "--tokens", "9000000", "--model", CHATTER, "--deadline", "1h")
    assert "CANNOT be met" in late.stdout and "too late" in late.stdout and "no room" in late.stdout
    endless = run("--items", "1", "--tokens", "1000000000", "--model", CHATTER, "--deadline", "1h")
    assert "by 13:00Z  no room in any region, as far as can be seen ahead" in endless.stdout


def test_spreads_and_no_saving_are_said(capsys: pytest.CaptureFixture[str], api: Harness) -> None:
    found = quoted("--items", "100", "--tokens", "100000", "--model", CHATTER, "--deadline", "6h")
    found["asked"] |= {"gco2e": 0.5, "spread_gco2e": 0.02, "saved_gco2e": 0.0, "saved_spread_gco2e": 0.0}
    found["curve"][0] |= {"gco2e": 0.5, "spread_gco2e": 0.02, "saved_pct": -3.0}
    show(found)
    said = capsys.readouterr().out
    assert "500 ± 20 mgCO2e in" in said and "none: it is the baseline's" in said
    assert "500 ± 20 mg +3 %" in said and "as if all of them erred together" in said


@pytest.mark.parametrize(
    ("words", "text"),
    [((), "give either INPUT"), (("x", "--items", "1"), "give either INPUT"), (("--items", "1"), "go together")],
)
def test_usage(api: Harness, words: tuple[str, ...], text: str) -> None:
    refused = run(*words)
    assert refused.exit_code == 2 and text in refused.stderr


def test_what_is_wrong_with_the_input_is_one_sentence(api: Harness, tmp_path: Path) -> None:
    absent = run(str(tmp_path / "absent.jsonl")).exception
    assert isinstance(absent, InvalidRequest) and "cannot read" in absent.message
    empty = run("-", text="\n\n").exception
    assert isinstance(empty, InvalidRequest) and empty.code == "empty_file"
    unknown = run("--items", "1", "--tokens", "1", "--model", "gpt-9").exception
    assert isinstance(unknown, InvalidRequest) and unknown.code == "model_not_found"
