"""What every command has without saying so: ``--quiet``, ``--no-color``, ``--url``, and examples first in its help.

``give_to`` walks the whole tree once, so that a new command needs to do nothing for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from carbonq.cli import connect, output

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors and data.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR=1 does the same.")]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The API to talk to; unset: CARBONQ_API_URL, else this machine's."),
]

#: How an example begins in a docstring; it is one line, and may stand in a paragraph of its own anywhere.
EXAMPLE = "Example: "


def examples_of(text: str | None) -> list[str]:
    """Return the command lines that a help text gives as examples."""
    return [line.strip().removeprefix(EXAMPLE) for line in (text or "").splitlines() if _is_example(line)]


def _is_example(line: str) -> bool:
    return line.strip().startswith(EXAMPLE)


def _without_examples(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not _is_example(line)).strip()


class Command(TyperCommand):
    """A command whose help begins with its examples: they are what most people look for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write examples, usage, text and options."""
        _write_help(self, super().format_help, examples_of(self.help), ctx, formatter)


class Group(TyperGroup):
    """A group whose help begins with an example: its own, else the one of its first command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write an example, usage, text, options and commands."""
        commands = (command for command in self.commands.values() if not command.hidden)
        first = next((found for command in commands if (found := examples_of(command.help))), [])
        own = examples_of(self.help) or examples_of(self.callback.__doc__ if self.callback else None)
        _write_help(self, super().format_help, own or first[:1], ctx, formatter)


def _write_help(
    command: Any, write_rest: Callable[[Any, Any], None], examples: list[str], ctx: Any, formatter: Any
) -> None:
    for example in examples:
        formatter.write(f"{EXAMPLE}{example}\n")
    if examples:
        formatter.write("\n")
    text, command.help = command.help, _without_examples(command.help or "")
    try:
        write_rest(ctx, formatter)
    finally:
        command.help = text


def give_to(app: typer.Typer) -> None:
    """Give the options and the help to all commands of an app and of the groups in it."""
    app.info.cls = Group
    for info in app.registered_commands:
        assert info.callback is not None
        info.cls = Command
        info.callback = _sharing(info.callback)
    callback = app.registered_callback
    is_command = True in {app.info.invoke_without_command, getattr(callback, "invoke_without_command", None)}
    if callback is not None and callback.callback is not None and is_command:
        callback.callback = _sharing(callback.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        give_to(group.typer_instance)


def _sharing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the shared options, which are in force while it runs."""
    if hasattr(command, "__signature__"):  # it has them already
        return command
    wanted: dict[str, tuple[Any, Any]] = {"quiet": (Quiet, False), "no_color": (NoColor, False)}
    if connect.is_remote(command):
        wanted["url"] = (Url, None)

    @functools.wraps(command)
    def run(*given: Any, quiet: bool = False, no_color: bool = False, url: str | None = None, **more: Any) -> Any:
        with output.speaking(is_quiet=quiet, is_colourless=no_color), connect.talking_to(url):
            return command(*given, **more)

    signature = inspect.signature(command, eval_str=True)
    added = [one for one in _parameters(wanted) if one.name not in signature.parameters]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    run.__annotations__ = {**command.__annotations__, **{one.name: one.annotation for one in added}}
    return run


def _parameters(wanted: Mapping[str, tuple[Any, Any]]) -> Iterator[inspect.Parameter]:
    for name, (annotation, default) in wanted.items():
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
