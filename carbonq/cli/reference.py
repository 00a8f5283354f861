"""The reference of all commands, as Markdown: ``python -m carbonq.cli.reference > docs/cli.md`` writes it anew.

It is made of the help pages themselves, at a fixed width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.main import get_command

_WIDTH = 100

_PREFACE = """\
# The command line

`carbonq COMMAND --help` shows what is below, examples first. Data goes to stdout, messages to stderr, so that
`carbonq ... > file` and `carbonq ... | jq` get data alone; a bar is drawn on a terminal only. Exit status: 0 done,
1 failed (one sentence says why, or some items have no result), 2 wrong usage, 130 after Ctrl-C, which ends at once and
says how to go on.

| everywhere | |
|---|---|
| `--json` | data as one JSON document instead of text |
| `-` | stdin as INPUT, stdout as OUT |
| `--quiet`, `-q` | data and errors only |
| `--no-color` | so does `NO_COLOR=1`, and a stdout that is no terminal |
| `--yes`, `-y` | where something cannot be taken back: do not ask. Only a person at a terminal is asked |
| `-h`, `--help` | a word misspelt gets a suggestion |

## Which installation

Commands that have `--url` talk to the API and need nothing else: on another machine they are used like here. Which API:
`--url`, else `CARBONQ_API_URL` (or `api_url` in carbonq.toml), else the stack that runs on the data folder, else
`http://127.0.0.1:8750`. A path in front is kept, so an API behind a reverse proxy is `https://host/some/path`.

The key comes from `CARBONQ_API_KEY`, from the file that `CARBONQ_API_KEY_FILE` names, or, for this machine's own API,
from `DATA_DIR/api-key`, which `carbonq up` made; that one goes to no other machine. No option takes a key, for options
are read by everybody on the machine. The other commands work in the database of the settings (`carbonq config show`).

```
export CARBONQ_API_URL=https://carbonq.example/queue CARBONQ_API_KEY_FILE=~/.carbonq-key
carbonq submit embeddings docs.jsonl --deadline 6h --dry-run        # what it would cause; nothing is stored
carbonq submit embeddings docs.jsonl --deadline 6h --wait -o out.jsonl
carbonq jobs results JOB -o out.jsonl                               # again after a cut: it goes on where it was
```

## Shell completion

`carbonq --install-completion` sets it up for the shell it is called from (bash, zsh, fish, PowerShell);
`carbonq --show-completion` prints the script instead. It completes commands and options, and asks the API, for at most
a second, for ids of jobs, regions and models.

## Commands
"""


def commands(app: typer.Typer) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each command and group that is not hidden: its words, the command, and a context to render it in."""
    root = get_command(app)
    context = typer.Context(
        root, info_name="carbonq", terminal_width=_WIDTH, max_content_width=_WIDTH, help_option_names=["-h", "--help"]
    )
    yield from _below(root, ("carbonq",), context)


def _below(command: Any, words: tuple[str, ...], context: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    yield words, command, context
    for name, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            below = typer.Context(one, info_name=name, parent=context, terminal_width=_WIDTH, max_content_width=_WIDTH)
            yield from _below(one, (*words, name), below)


def document(app: typer.Typer) -> str:
    """Return the reference."""
    parts = [_PREFACE]
    for words, command, context in commands(app):
        page = "\n".join(line.rstrip() for line in command.get_help(context).splitlines() if not _is_shared(line))
        parts.append(f"{'##' if len(words) == 1 else '###'} {' '.join(words)}\n\n```\n{page.strip()}\n```\n")
    return "\n".join(parts)


def _is_shared(line: str) -> bool:
    """Say whether a line is of an option that the preface tells of, once for all commands."""
    return line.strip().startswith(("-q, --quiet ", "--no-color ", "-h, --help "))


def _main() -> None:
    from carbonq.cli.main import app

    typer.echo(document(app), nl=False)


if __name__ == "__main__":
    _main()
