"""The report as a PDF, read back: its figures, its outline, its names, and the words of its drawings."""

from __future__ import annotations

import builtins
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pypdf import PdfReader

from carbonq.errors import ConfigError
from carbonq.render import fonts
from carbonq.render.chapters import sheet_of
from carbonq.render.pdf import pdf
from carbonq.render.sheet import Table, Tiles
from carbonq.report import Report
from tests.unit.rendered import HARD, HOSTILE, named
from tests.unit.reports import example


def read(report: Report) -> PdfReader:
    return PdfReader(io.BytesIO(pdf(report)))


def words(reader: PdfReader) -> str:
    """Return all text of a document, its spaces and line ends as one."""
    return squeezed(" ".join(page.extract_text() for page in reader.pages))


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_every_figure_is_in_it() -> None:
    text = words(read(example()))
    for chapter in sheet_of(example()).chapters:
        assert squeezed(chapter.title) in text
        for block in chapter.blocks:
            if isinstance(block, Tiles):
                assert all(squeezed(tile.text) in text for tile in block.tiles)
            elif isinstance(block, Table):
                for row in block.rows:
                    for cell in row:
                        assert squeezed(cell.text) in text, (block.caption, cell)


def test_it_has_an_outline_numbers_and_a_title() -> None:
    reader = read(example())
    titles = [one.title for one in reader.outline if not isinstance(one, list)]
    assert titles == [chapter.title for chapter in sheet_of(example()).chapters]
    for number, page in enumerate(reader.pages, 1):
        assert f"{number} / {len(reader.pages)}" in page.extract_text()
    assert reader.metadata is not None and reader.metadata.title == "Carbon report, November 2026, All tenants"
    assert reader.root_object["/Lang"] == "en"


def below(node: Any) -> Iterator[Any]:
    """Return a node of the structure and all that is in it."""
    node = node.get_object()
    if hasattr(node, "keys"):
        yield node
        inside = node.get("/K", [])
        for one in inside if isinstance(inside, list) else [inside]:
            yield from below(one)


def test_drawings_have_words_for_those_who_do_not_see_them() -> None:
    reader = read(example())
    tree: Any = reader.root_object["/StructTreeRoot"]
    said = [one["/Alt"] for one in below(tree) if "/Alt" in one]
    alts = [block.alt for chapter in sheet_of(example()).chapters for block in chapter.blocks if hasattr(block, "alt")]
    assert len(alts) >= 7 and said == alts


def test_the_same_report_gives_the_same_bytes() -> None:
    assert pdf(example()) == pdf(example())


@pytest.mark.parametrize("name", HARD)
def test_hard_reports_are_made(name: str) -> None:
    reader = read(HARD[name])
    titles = [chapter.title for chapter in sheet_of(HARD[name]).chapters]
    text = words(reader)
    assert all(squeezed(title) in text for title in titles)
    # A page on which a title stands alone would be short.
    assert all(len(page.extract_text()) > 60 for page in reader.pages)


def test_letters_that_the_font_lacks_are_shown_by_their_numbers() -> None:
    text = words(read(named(*HOSTILE)))
    assert r"\u691c\u7d22" in text and r"\u1f343leaf" in text and r"\u202etxt.exe" in text
    assert "поиск·αναζήτηση·ćwikła" in text and "W" * 255 in text


def test_a_long_table_has_its_heading_on_every_page() -> None:
    pages = [page.extract_text() for page in read(HARD["crowded"]).pages]
    with_lines = [text for text in pages if "line 0" in text or "line 1" in text]
    assert len(with_lines) > 4 and all("Product line" in text for text in with_lines)


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "fpdf":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", refuse)
        with pytest.raises(ConfigError, match=r"pip install 'carbonq\[report\]'"):
            pdf(example())
    monkeypatch.setattr(fonts, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"carbonq\[report\]"):
        pdf(example())
