"""The site is built strictly: every page in the navigation, every link and anchor there, nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

pytest.importorskip("mkdocs", reason="the extra docs is not installed")


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    made = subprocess.run(
        (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)),
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    pages = {path.relative_to(tmp_path): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    assert len(pages) == len(PAGES) + 2, "README.md is none; cli.html, http-reference.html and 404.html are"
    assert 'id="post-v1jobs"' in pages[Path("http-reference.html")], "made of the routes"
    fetched = {
        found
        for text in pages.values()
        for found in re.findall(r'<(?:script|link|img|iframe)[^>]+https?://[^"\'> ]+', text)
    }
    assert not fetched, "a page that is read must tell nobody"


def test_the_readme_links_to_what_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target}
    assert len(linked) > 10
    assert not [target for target in linked if not (ROOT / target).exists()]


def test_files_that_pages_name_exist() -> None:
    named = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(r"`((?:docs|tests|ops|requirements)/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert not [(page, path) for page, path in sorted(named) if not (ROOT / path).exists()]
