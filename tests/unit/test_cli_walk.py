"""Every command there is, whoever added it: its help, its options, its place in docs/cli.md, and how it fails."""

from __future__ import annotations

import inspect
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from typer.testing import CliRunner

from carbonq.cli import connect, main, reference

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"

ALL = [(words, command, context) for words, command, context in reference.commands(main.app)]
LEAVES = [one for one in ALL if not hasattr(one[1], "commands") or one[1].invoke_without_command]
GROUPS = [one for one in ALL if hasattr(one[1], "commands")]

#: Commands whose output is no JSON document, and why.
NO_JSON = {
    "carbonq audit": "writes one JSON document anyhow",
    "carbonq config docs": "prints Markdown",
    "carbonq db roles": "prints SQL",
    "carbonq jobs results": "prints JSON Lines, as the job made them",
    "carbonq ledger export": "writes CSV or Parquet",
    "carbonq ledger proof": "writes one JSON document anyhow",
    "carbonq process": "runs until it is stopped and prints its log",
    "carbonq worker": "runs until it is stopped and prints its log",
}

#: Words that name a secret in an option; ``tokens`` are counted, and a file that holds one is no secret.
SECRETS = {"password", "secret", "token", "key"}

#: Options that sound like it: what this one takes is a key's id.
NO_SECRETS = {("carbonq audit", "--key")}

#: Names that people and scripts rely on (design, section 7); report and budget are still to come.
FIXED = """
    demo, up, submit embeddings, submit summarize, submit file, jobs list, jobs show, jobs watch, jobs cancel,
    jobs results, jobs why, quote, budget set, budget show, plan show, forecast show, forecast fetch, regions list,
    regions pause, regions resume, regions drain, ledger export, ledger verify, ledger settle, ledger summary, audit,
    keys create, keys list, keys revoke, replay, db upgrade, doctor, config show, worker, bench
"""

#: What stands for a required argument or option when a command is run against a server that is down.
FILLERS = {
    "source": "docs.txt",
    "job_id": "job_1",
    "deadline": "6h",
    "zone": "Z",
    "webhook_id": "wh_1",
    "from_": "2026-01-01T00:00Z",
    "to": "2026-02-01T00:00Z",
    "signal": "marginal",
    "address": "https://a.example",
}


def _ids(commands: list[Any]) -> dict[str, Any]:
    return {"argvalues": commands, "ids": [" ".join(words) for words, *_ in commands]}


def _options(command: Any) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")}


def _own_help(command: Any, context: Any) -> str:
    return command.get_help(context)


@pytest.mark.parametrize(("words", "command", "context"), **_ids(ALL))
def test_help_begins_with_an_example_of_the_command(words: tuple[str, ...], command: Any, context: Any) -> None:
    page = _own_help(command, context)
    first, second = page.splitlines()[:2]
    assert first.startswith(f"Example: {' '.join(words)}"), page
    assert second == "" or second.startswith("Example: ")
    assert page.index("Example: ") < page.index("Usage: ") and "Example: " not in page[page.index("Usage: ") :]
    assert command.help and command.help.strip(), "what it does is not said"


@pytest.mark.parametrize(("words", "command", "context"), **_ids(LEAVES))
def test_each_command_has_the_options_of_all(words: tuple[str, ...], command: Any, context: Any) -> None:
    options, name = _options(command), " ".join(words)
    assert options >= {"--quiet", "-q", "--no-color"}
    assert ("--json" in options) != (name in NO_JSON), f"--json, or why not, in NO_JSON: {name}"
    assert {"-h", "--help"} <= set(context.help_option_names)
    assert command.callback is not None
    assert ("--url" in options) == connect.is_remote(command.callback)
    assert all(getattr(param, "help", None) for param in command.params), "an option says not what it is for"


@pytest.mark.parametrize(("words", "command", "context"), **_ids(LEAVES))
def test_no_option_takes_a_secret(words: tuple[str, ...], command: Any, context: Any) -> None:
    for param in command.params:
        for name in param.opts:
            parts = set(name.split("-"))
            is_no_secret = getattr(param, "is_flag", False) or {"file", "idempotency"} & parts
            is_no_secret = is_no_secret or (" ".join(words), name) in NO_SECRETS
            assert is_no_secret or not SECRETS & parts, name


def test_what_is_excused_exists() -> None:
    names = {" ".join(words) for words, *_ in LEAVES}
    assert set(NO_JSON) <= names, set(NO_JSON) - names


def test_the_fixed_names_are_there() -> None:
    names = {" ".join(words[1:]) for words, *_ in ALL}
    assert {one.strip() for one in FIXED.split(",")} <= names


def test_the_reference_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == reference.document(main.app), (
        "write it anew: python -m carbonq.cli.reference > docs/cli.md"
    )


@pytest.mark.parametrize(("words", "command", "context"), **_ids(ALL[1:]))
def test_the_reference_has_each_command(words: tuple[str, ...], command: Any, context: Any) -> None:
    assert f"\n### {' '.join(words)}\n" in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize(("words", "command", "context"), **_ids(LEAVES))
def test_bad_usage_is_exit_status_two_and_no_data(words: tuple[str, ...], command: Any, context: Any) -> None:
    shown = CliRunner().invoke(main.app, [*words[1:], "--no-such-option"])
    assert shown.exit_code == 2 and not shown.stdout
    assert "No such option: --no-such-option" in shown.stderr and "for help" in shown.stderr


@pytest.mark.parametrize(("words", "command", "context"), **_ids(GROUPS))
def test_a_misspelt_command_gets_a_suggestion(words: tuple[str, ...], command: Any, context: Any) -> None:
    meant = max(command.commands, key=len)
    shown = CliRunner().invoke(main.app, [*words[1:], meant[:-1] + "x"])
    assert shown.exit_code == 2
    assert f"Did you mean '{meant}'" in shown.stderr or meant in shown.stderr.partition("Did you mean")[2]


REMOTE = [one for one in LEAVES if one[1].callback is not None and connect.is_remote(one[1].callback)]


def _run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the whole program in this process; return its exit status."""
    # Typer would build all commands anew for it.
    built = typing.cast("Any", typer.testing)._get_command(main.app)
    monkeypatch.setattr(main, "app", lambda: built.main(arguments, "carbonq"))
    with pytest.raises(SystemExit) as end:
        main.main()
    return 0 if end.value.code is None else int(typing.cast("Any", end.value.code))


def _filled(command: Any) -> list[str]:
    arguments: list[str] = []
    for param in command.params:
        filler = FILLERS.get(param.name, "x")
        if param.required or param.name in {"source", "workload"}:
            arguments += [filler] if param.param_type_name == "argument" else [param.opts[0], filler]
    return arguments


@pytest.mark.parametrize(("words", "command", "context"), **_ids(REMOTE))
def test_a_server_that_is_down_is_one_sentence(
    words: tuple[str, ...], command: Any, context: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch, capsys = request.getfixturevalue("monkeypatch"), request.getfixturevalue("capsys")
    monkeypatch.chdir(tmp_path)
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}\n'
    (tmp_path / "docs.txt").write_bytes(line)
    arguments = [*words[1:], *_filled(command), "--url", "http://127.0.0.1:9"]
    assert _run(arguments, monkeypatch) == 1
    written = capsys.readouterr()
    assert not written.out
    assert written.err.startswith("carbonq: no carbonq answers at http://127.0.0.1:9;") and written.err.count("\n") == 1


def _needs_database(command: Any) -> bool:
    source = inspect.getsource(inspect.unwrap(command.callback))
    return "open_database" in source or "_opened()" in source


LOCAL = [one for one in LEAVES if not connect.is_remote(one[1].callback) and _needs_database(one[1])]


@pytest.mark.parametrize(("words", "command", "context"), **_ids(LOCAL))
def test_where_there_is_no_database_one_sentence_says_so_and_none_is_made(
    words: tuple[str, ...], command: Any, context: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch, capsys = request.getfixturevalue("monkeypatch"), request.getfixturevalue("capsys")
    monkeypatch.chdir(tmp_path)
    assert _run([*words[1:], *_filled(command)], monkeypatch) == 1
    written = capsys.readouterr()
    assert not written.out and not list(tmp_path.iterdir())
    assert written.err.startswith("carbonq: ") and written.err.count("\n") == 1


def test_there_are_such_commands() -> None:
    assert len(REMOTE) > 10 and len(LOCAL) > 15


def test_interrupted_is_exit_status_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(connect, "open_client", interrupted)
    assert _run(["jobs", "list"], monkeypatch) == 130
    assert capsys.readouterr() == ("", "")


def test_the_program_says_its_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["--version"], monkeypatch) == 0
    assert capsys.readouterr().out.count(".") == 2 and not sys.stderr.closed
