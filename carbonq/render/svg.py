"""Drawings as SVG, whose colours are classes, so that pages and PDFs give them their own. Pure.

The same drawing stands in the HTML report and in the PDF. Places are user units of the SVG; all text is escaped here.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from html import escape

from carbonq.render import figures

#: How wide a letter is, as a part of the size of its font.
_LETTER = 0.54


@dataclass(frozen=True, slots=True)
class Key:
    """What a colour stands for; ``kind`` is the class of the marks."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing without its frame: ``body`` is the markup of its marks; ``alt`` says in words what it shows."""

    title: str
    alt: str
    width: float
    height: float
    body: str
    keys: tuple[Key, ...] = ()
    note: str = ""

    @property
    def view_box(self) -> str:
        """Its size, as an SVG says it."""
        return f"0 0 {self.width:g} {self.height:g}"


def text_width(text: str, size: float) -> float:
    """Return about how wide a text is: wide letters of East Asia count twice, marks above others not at all."""
    letters = sum(_width(letter) for letter in text)
    return letters * size * _LETTER


def _width(letter: str) -> float:
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF" or letter in "@MWmw%":
        return 1.75
    return 1.25 if letter.isupper() else 1.1


def shortened(text: str, room: float, size: float) -> str:
    """Return a text that fits into ``room``, its end left out where it must be."""
    text = figures.visible(text)
    if text_width(text, size) <= room:
        return text
    kept = ""
    for letter in text:
        if text_width(kept + letter + "…", size) > room:
            break
        kept += letter
    return kept.rstrip() + "…"


def rect(kind: str, x: float, y: float, width: float, height: float, *, says: str = "", radius: float = 0.0) -> str:
    """Draw a bar; ``says`` is shown where a pointer rests on it."""
    rounded = f' rx="{radius:g}"' if radius and min(width, height) > 2 * radius else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return _mark(f'<rect class="{kind}" {place}{rounded}', "rect", says)


def line(kind: str, x1: float, y1: float, x2: float, y2: float, *, says: str = "") -> str:
    """Draw a straight line."""
    return _mark(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"', "line", says)


def text(kind: str, x: float, y: float, words: str, *, size: float = 10, anchor: str = "start") -> str:
    """Write words; ``anchor`` is start, middle or end."""
    how = f'font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" {how}>{escape(figures.visible(words))}</text>'


def _mark(opened: str, name: str, says: str) -> str:
    return f"{opened}><title>{escape(figures.visible(says))}</title></{name}>" if says else f"{opened}/>"
