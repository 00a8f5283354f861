"""A report as a PDF: A4, an outline, tables that go on over pages, and drawings as lines and letters, with their words.

Letters that its font does not have are shown by their numbers, so that no name is lost.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from carbonq.render import figures, fonts
from carbonq.render.chapters import sheet_of
from carbonq.render.sheet import Block, Chapter, Sheet, Table, Tiles, Words
from carbonq.render.svg import Drawing, Key
from carbonq.report import Report

if TYPE_CHECKING:
    from fpdf import FPDF

#: Places in points.
_MARGIN = 42.0
_FOOT = 40.0
_TILE_GAP = 8.0

#: What must fit under the title of a chapter, and under that of a table, so that neither stands alone on a page.
_CHAPTER, _TABLE = 230.0, 112.0

_INK, _SOFT, _LINE, _HEAD, _ACCENT = (23, 33, 31), (83, 97, 94), (221, 228, 225), (240, 245, 243), (11, 107, 98)
_NOTICE, _STRIPE = (253, 243, 220), (248, 250, 249)

#: Colours of the drawings' classes; those of the page are in its style sheet.
_COLOURS = {
    "baseline": "#8a9895",
    "estimated": "#d9a441",
    "impact": "#0b6b62",
    "impact-provisional": "#74bfb5",
    "inventory": "#2f5fb0",
    "inventory-provisional": "#8fb0e6",
    "limit": "#b4235a",
    "lost": "#b4402a",
    "measured": "#0b6b62",
    "mixed": "#4f9f96",
    "name": "#17211f",
    "saved": "#2e9e5b",
    "tick": "#53615e",
    "unknown": "#53615e",
    "unsettleable": "#a9b4b1",
    "upper_bound": "#b98a8a",
    "value": "#17211f",
}

_STYLE = "".join(f".{kind}{{fill:{colour};stroke:none}}" for kind, colour in _COLOURS.items()) + (
    ".grid{stroke:#e4eae7;stroke-width:1}.limit{stroke:#b4235a;stroke-width:2.4}"
)


def pdf(report: Report) -> bytes:
    """Return the report as a PDF; the same report gives the same bytes. Raises ConfigError without ``[report]``."""
    sheet = sheet_of(report)
    writer = _Writer(sheet)
    writer.document.set_creation_date(report.head.generated_at)
    writer.first_page()
    for chapter in sheet.chapters:
        writer.chapter(chapter)
    return bytes(writer.document.output())


def _document(subject: str) -> FPDF:
    """Return an empty document with its fonts, whose pages are numbered. Raises ConfigError."""
    try:
        from fpdf import FPDF
    except ImportError as error:
        raise fonts.missing() from error

    class Document(FPDF):
        def footer(self) -> None:
            self.set_y(-_FOOT + 10)
            self.set_font("sans", "", 7.5)
            self.set_text_color(*_SOFT)
            self.cell(self.epw * 0.8, 10, subject, new_x="RIGHT", new_y="TOP")
            self.cell(self.epw * 0.2, 10, f"{self.page_no()} / {{nb}}", align="R")

    document = Document(unit="pt", format="A4")
    for (family, style), file in fonts.files().items():
        document.add_font(family, style, file)
    document.set_margins(_MARGIN, _MARGIN, _MARGIN)
    document.c_margin = 0.0
    document.set_auto_page_break(True, _FOOT + 14)
    return document


class _Writer:
    """Writes blocks one below the other."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self.document = _document(sheet.title)
        self._letters: set[int] = set(self._font_letters())
        document = self.document
        document.set_title(f"{sheet.title}, {self._known(sheet.subtitle)}")
        document.set_author("carbonq")
        document.set_lang("en")
        document.set_display_mode("default", "continuous")

    def _font_letters(self) -> Sequence[int]:
        font = self.document.fonts["sans"]
        return list(font.cmap)  # pyright: ignore[reportAttributeAccessIssue]

    def _known(self, text: str, instead: str = "\\u{:04x}") -> str:
        """Return a text in letters that the font has; ``instead`` stands for others."""
        text = figures.visible(text)
        if all(ord(letter) in self._letters for letter in text):
            return text
        return "".join(one if ord(one) in self._letters else instead.format(ord(one)) for one in text)

    # --- places -------------------------------------------------------------------------------------------

    def _need(self, height: float) -> None:
        """Begin a page where less than a height is left of this one."""
        if self.document.will_page_break(height):
            self.document.add_page()

    def _font(self, size: float, style: str = "", colour: tuple[int, int, int] = _INK, *, family: str = "sans") -> None:
        self.document.set_font(family, style, size)
        self.document.set_text_color(*colour)

    def _text(self, text: str, height: float) -> None:
        document = self.document
        document.multi_cell(document.epw, height, self._known(text), align="L", new_x="LMARGIN", new_y="NEXT")

    # --- parts --------------------------------------------------------------------------------------------

    def first_page(self) -> None:
        """Write the title and what the report is of."""
        document, sheet = self.document, self._sheet
        document.add_page()
        self._font(22, "B")
        self._text(sheet.title, 28)
        self._font(12, "B", _ACCENT)
        self._text(sheet.subtitle, 17)
        document.ln(8)
        document.set_draw_color(*_ACCENT)
        document.set_line_width(1.4)
        document.line(document.l_margin, document.get_y(), document.l_margin + document.epw, document.get_y())
        document.ln(8)
        for name, text in sheet.facts:
            self._need(14)
            self._font(8, "", _SOFT)
            document.cell(118, 13, name, new_x="RIGHT", new_y="TOP")
            self._font(8)
            document.multi_cell(document.epw - 118, 13, self._known(text), align="L", new_x="LMARGIN", new_y="NEXT")
        document.ln(4)

    def chapter(self, chapter: Chapter) -> None:
        """Write a chapter, with its place in the outline."""
        document = self.document
        self._need(_CHAPTER)
        if document.get_y() > _MARGIN + 1:
            document.ln(14)
            document.set_draw_color(*_LINE)
            document.set_line_width(0.8)
            document.line(document.l_margin, document.get_y(), document.l_margin + document.epw, document.get_y())
            document.ln(8)
        document.start_section(self._known(chapter.title))
        self._font(14, "B")
        self._text(chapter.title, 19)
        for block in chapter.blocks:
            self._block(block)

    def _block(self, block: Block) -> None:
        if isinstance(block, Table):
            self._table(block)
        elif isinstance(block, Tiles):
            self._tiles(block)
        elif isinstance(block, Drawing):
            self._drawing(block)
        else:
            self._words(block)

    def _words(self, words: Words) -> None:
        document = self.document
        if words.title:
            self._need(44)
            document.ln(8)
            self._font(9.5, "B")
            self._text(words.title, 14)
        self._font(6.7 if words.is_code else 8.5, family="mono" if words.is_code else "sans")
        document.ln(3)
        if words.is_notice or words.is_code:
            document.set_fill_color(*(_NOTICE if words.is_notice else _HEAD))
            text = "\n".join(map(self._known, words.text.splitlines()))
            document.multi_cell(
                document.epw,
                11 if words.is_code else 13,
                text,
                align="L",
                fill=True,
                padding=(3, 7),
                new_x="LMARGIN",
                new_y="NEXT",
            )
        else:
            self._text(words.text, 12.5)

    def _note(self, text: str) -> None:
        if text:
            self.document.ln(3)
            self._font(7.2, "", _SOFT)
            self._text(text, 10)

    def _tiles(self, block: Tiles) -> None:
        document = self.document
        width, height = (document.epw - 2 * _TILE_GAP) / 3, 78.0
        for start in range(0, len(block.tiles), 3):
            document.ln(_TILE_GAP)
            self._need(height)
            top = document.get_y()
            for number, tile in enumerate(block.tiles[start : start + 3]):
                x = document.l_margin + number * (width + _TILE_GAP)
                document.set_fill_color(*_HEAD)
                document.rect(x, top, width, height, style="F", round_corners=True, corner_radius=5)
                document.set_xy(x + 8, top + 6)
                for text, size, style, colour, line in (
                    (tile.name, 7.2, "", _SOFT, 9.5),
                    (tile.text, 14, "B", _INK, 19),
                    (tile.below, 7, "", _SOFT, 9),
                ):
                    self._font(size, style, colour)
                    document.set_x(x + 8)
                    known = self._known(text)
                    document.multi_cell(width - 16, line, known, align="L", new_x="LEFT", new_y="NEXT")
            document.set_xy(document.l_margin, top + height)

    def _drawing(self, drawing: Drawing) -> None:
        document = self.document
        height = document.epw * drawing.height / drawing.width
        self._need(height + 52)
        document.ln(10)
        self._font(9.5, "B")
        self._text(drawing.title, 15)
        # Names are cut to their room already, so another letter takes the place of one; the table has them in full.
        body = self._known(drawing.body, "□")
        markup = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{drawing.view_box}" font-family="sans">'
            f"<style>{_STYLE}</style>{body}</svg>"
        )
        y = document.get_y()
        document.image(
            io.BytesIO(markup.encode()),
            x=document.l_margin,
            y=y,
            w=document.epw,
            h=height,
            title=self._known(drawing.title),
            alt_text=self._known(drawing.alt),
        )
        document.set_xy(document.l_margin, y + height + 2)
        self._keys(drawing.keys)
        self._note(drawing.note)

    def _keys(self, keys: Sequence[Key]) -> None:
        document = self.document
        if not keys:
            return
        for key in keys:
            is_mark = key.kind == "limit"
            document.set_fill_color(_COLOURS[key.kind])
            document.rect(document.get_x() + (3 if is_mark else 0), document.get_y() + 2, 2 if is_mark else 8, 8, "F")
            self._font(7.5, "", _SOFT)
            document.set_x(document.get_x() + 12)
            document.cell(document.get_string_width(key.name) + 14, 12, key.name, new_x="RIGHT", new_y="TOP")
        document.ln(13)

    def _table(self, table: Table) -> None:
        from fpdf.enums import TableBordersLayout
        from fpdf.fonts import FontFace

        document = self.document
        self._need(_TABLE)
        document.ln(10)
        self._font(9.5, "B")
        self._text(table.caption, 14)
        document.ln(2)
        size = 7.2 if len(table.columns) < 9 else 6.6
        self._font(size)
        document.set_draw_color(*_LINE)
        document.set_line_width(0.5)
        document.set_fill_color(255)
        with document.table(
            align="LEFT",
            borders_layout=TableBordersLayout.HORIZONTAL_LINES,
            cell_fill_color=_STRIPE,
            cell_fill_mode="EVEN_ROWS",
            col_widths=tuple(column.weight for column in table.columns),
            headings_style=FontFace(emphasis="BOLD", color=_SOFT, fill_color=_HEAD),
            line_height=size * 1.32,
            padding=(2.2, 4),
            text_align=tuple("RIGHT" if column.is_number else "LEFT" for column in table.columns),
            v_align="TOP",
        ) as rows:
            heading = rows.row()
            for column in table.columns:
                heading.cell(column.name)
            for row in table.rows:
                line = rows.row()
                for cell in row:
                    line.cell(self._known(cell.text) + (f"\n{self._known(cell.below)}" if cell.below else ""))
        self._note(table.note)
