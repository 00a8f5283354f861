"""What the site has that no file in docs/ has: the reference of the HTTP API, made of the routes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_METHODS = ("get", "post", "put", "patch", "delete")

_PREFACE = """\
# Every route

Made of what `GET /openapi.json` says, which has shapes and examples of all bodies and answers besides.
[What they mean together](http-api.md), and [each error code](errors.md).
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated page."""
    files.append(File.generated(config, "http-reference.md", content=page(described())))
    return files


def described() -> dict[str, Any]:
    """Return what ``GET /openapi.json`` answers, without a database or a broker."""
    from carbonq.api.app import create_app

    return create_app(MagicMock(allowed_hosts=None), background=[]).openapi()


def page(document: dict[str, Any]) -> str:
    """Write the routes as Markdown, by tag, in the order of the document."""
    return "\n".join((_PREFACE, *_routes(document)))


def _routes(document: dict[str, Any]) -> Iterator[str]:
    found = [
        (path, method, route)
        for path, methods in document["paths"].items()
        for method, route in methods.items()
        if method in _METHODS
    ]
    for tag in document.get("tags", ()):
        yield f"## {tag['name'].capitalize()}\n\n{tag.get('description', '')}\n"
        for path, method, route in found:
            if tag["name"] in route.get("tags", ()):
                yield _route(path, method, route, document)


def _route(path: str, method: str, route: dict[str, Any], document: dict[str, Any]) -> str:
    lines = [f"### {method.upper()} {path}\n", f"{route.get('description') or route.get('summary', '')}\n"]
    parameters = [_resolved(one, document) for one in route.get("parameters", ())]
    if parameters:
        lines += ["| parameter | in | |", "|---|---|---|"]
        lines += [
            f"| `{one['name']}`{' (required)' if one.get('required') else ''} | {one['in']} "
            f"| {_cell(one.get('description', ''))} |"
            for one in parameters
        ]
        lines.append("")
    if body := route.get("requestBody"):
        lines.append(f"Body: {', '.join(f'`{kind}`' for kind in _resolved(body, document).get('content', {}))}.\n")
    answers = [(status, _resolved(answer, document)) for status, answer in sorted(route["responses"].items())]
    lines += ["| status | |", "|---|---|"]
    lines += [f"| {status} | {_cell(answer.get('description', ''))} |" for status, answer in answers]
    return "\n".join((*lines, ""))


def _resolved(one: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    for part in one.get("$ref", "").removeprefix("#/").split("/") if "$ref" in one else ():
        document = document[part]
    return document if "$ref" in one else one


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
