"""A report as one HTML file: nothing of it is loaded from elsewhere, and nothing in it runs."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from carbonq.render import figures
from carbonq.render.chapters import sheet_of
from carbonq.render.sheet import Block
from carbonq.report import Report

_STYLE = files("carbonq.render").joinpath("templates", "report.css").read_text(encoding="utf-8")

#: The policy that a report is served with: its own style sheet, which its hash names, and nothing else.
POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def _shown(value: Any) -> Any:
    """Make letters that cannot be seen visible in whatever is written; markup of our own stays as it is."""
    return figures.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_TEMPLATES = Environment(
    loader=PackageLoader("carbonq.render"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _kind_of(block: Block) -> str:
    return type(block).__name__


def html(report: Report) -> str:
    """Return the report as a page."""
    template = _TEMPLATES.get_template("report.html")
    return template.render(sheet=sheet_of(report), style=Markup(_STYLE), markup=Markup, kind_of=_kind_of)
