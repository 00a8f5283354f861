"""What the documentation says to run: its blocks of commands, and the command lines in its text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from typer.main import get_command

from carbonq.cli.main import app

ROOT = Path(__file__).parents[2]

#: Pages with commands; docs/cli.md is made of the help pages themselves (tests/unit/test_cli_walk.py).
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "cli.md")]

#: Fences of commands; those without a language count where a line begins like a command.
_SHELLS = frozenset({"", "bash", "sh", "console"})

_PROGRAM: Any = get_command(app)


@dataclass(frozen=True, slots=True)
class Line:
    """A command line and the page that shows it, as a path from the root."""

    page: str
    text: str


def blocks(page: Path, languages: frozenset[str] = _SHELLS) -> list[str]:
    """Return the text of a page's fenced blocks in some languages."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


def lines() -> list[Line]:
    """Return every command line of the blocks, without comments; continued lines are one."""
    return [Line(str(page.relative_to(ROOT)), text) for page in PAGES for block in blocks(page) for text in _of(block)]


def _of(block: str) -> Iterator[str]:
    is_dialogue = block.lstrip().startswith("$ ")
    for raw in block.replace("\\\n", " ").splitlines():
        text = raw.strip()
        if is_dialogue and not text.startswith("$ "):
            continue  # what it answers
        text = re.sub(r"\s+#\s.*$", "", text.removeprefix("$ ")).strip()
        if text and not text.startswith("#"):
            yield text


def ours(text: str) -> Iterator[str]:
    """Return the carbonq command lines in a line of the shell: behind pipes, in containers, in substitutions."""
    for part in re.split(r"&&|\|\||[|;()]", text):
        found = re.search(r"(?:^|\s)carbonq\s+(?=[a-z-])(.*)$", part.strip())
        inside = re.search(r"compose run --rm api (.*)$", part.strip())
        if found and not re.search(r"createdb|kubectl|git clone|psql|pg_dump", part[: found.start()] + part):
            yield found[1]
        elif inside:
            yield inside[1]


def in_text() -> list[Line]:
    """Return the carbonq command lines that stand in running text."""
    return [
        Line(str(page.relative_to(ROOT)), text)
        for page in PAGES
        for text in re.findall(r"`carbonq ([^`]+)`", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL))
    ]


def complaint(text: str) -> str | None:
    """Say what of a command line (without ``carbonq``) does not exist; None where all of it does.

    Placeholders are taken as they stand: ``a|b`` is each of them, brackets are optional, ``...`` is anything.
    """
    words = shlex.split(re.sub(r"[\[\]]", " ", re.split(r"\s(?:[0-9]?>|<)", text)[0]))
    for spelled in product(*([one for one in word.split("|") if one] or [""] for word in words)):
        if (found := _complaint(list(spelled))) is not None:
            return found
    return None


def _complaint(words: list[str]) -> str | None:
    command, known = _PROGRAM, {"--help", "-h", *_options(_PROGRAM)}
    while words and hasattr(command, "commands"):
        if words[0] in {"...", "COMMAND"}:
            known |= {name for below in command.commands.values() for name in _options(below)}
            break
        if words[0].startswith("-"):
            break
        if words[0] not in command.commands:
            return f"there is no command {words[0]!r}" if command.commands and not _takes_more(command) else None
        command = command.commands[words.pop(0)]
        known |= _options(command)
    for word in words:
        name = word.partition("=")[0]
        if re.match(r"--?[a-z]", name) and name not in known:
            return f"there is no option {name}"
    return None


def _takes_more(command: Any) -> bool:
    """Say whether a group takes arguments of its own."""
    return any(param.param_type_name == "argument" for param in command.params)


def _options(command: Any) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
