"""The report as a page: every figure is in it, nothing in it runs or is loaded, and no name breaks out."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest

from carbonq.render import html as pages
from carbonq.render.chapters import sheet_of
from carbonq.render.html import html
from carbonq.render.sheet import MOST_ROWS
from carbonq.report import sections
from tests.unit.rendered import HARD, HOSTILE, crowded, empty, estimated, named, unrated
from tests.unit.reports import example


class Read(HTMLParser):
    """Tags, attributes and texts of a page, and that every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", HARD)
def test_a_page_is_well_formed_and_stands_alone(name: str) -> None:
    page = html(HARD[name])
    read = Read(page)
    tags = {tag for tag, _ in read.tags}
    assert not tags & {"script", "img", "iframe", "link", "object", "form", "b"}
    for tag, attributes in read.tags:
        assert not any(key.startswith("on") or key in {"style", "src"} for key in attributes), (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "@import" not in page and "url(" not in page
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)


def test_no_name_breaks_out() -> None:
    read = Read(html(named(*HOSTILE)))
    text = re.sub(r"\s+", " ", read.text)
    for name in HOSTILE[:5]:
        assert name in text
    assert "49{% raw" not in text  # what a template would have made of it
    for unseen in ("\u202e", "\u200b", "\x00", "\x1b"):
        assert unseen not in read.text
    assert r"\u202etxt.exe" in text and r"zero\u200bwidth\u0000\u001b[31m" in text
    assert "W" * 255 in text and "検索プロダクトライン" in text and "👩\u200d🔬" in text and "(none named)" in text


def test_the_policy_names_the_style_sheet_of_the_page() -> None:
    style = html(example()).partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in pages.POLICY


def test_tables_and_drawings_can_be_heard() -> None:
    read = Read(html(example()))
    count = {tag: sum(1 for one, _ in read.tags if one == tag) for tag in ("table", "caption", "h1", "figcaption")}
    assert count["table"] == count["caption"] > 12 and count["h1"] == 1
    drawings = [attributes for tag, attributes in read.tags if tag == "svg" and attributes.get("role") == "img"]
    assert len(drawings) == count["figcaption"] >= 7
    for attributes in drawings:
        assert len(attributes["aria-label"] or "") > 40
    assert all(attributes.get("scope") in {"col", "row"} for tag, attributes in read.tags if tag == "th")


def test_the_figures_are_there_with_all_their_digits() -> None:
    made = example()
    exact = Decimal("0.123456789012345678")
    line = replace(made.product_lines[0], impact=replace(made.product_lines[0].impact, known_g=exact), cap_g=Decimal(2))
    page = html(replace(made, product_lines=(line,)))
    assert f'title="{exact} gCO2e">123.5<' in page
    assert f'title="{made.totals.item_energy_uj:,} µJ"' in page


def test_a_month_without_entries_says_so() -> None:
    sheet = sheet_of(empty())
    assert "has no entry in 2026-11" in html(empty())
    assert [chapter.name for chapter in sheet.chapters] == ["summary", "saving", "method"]


def test_what_is_not_known_is_never_zero() -> None:
    read = Read(html(unrated()))
    assert "2,000 entries have no figure in the impact book" in read.text
    assert "2,000 entries have no figure in the inventory book" in read.text
    summary = read.text.partition("The month at a glance")[2].partition("Product lines and workloads")[0]
    assert "unknown" in read.text and "0 gCO2e" not in summary
    assert "nothing is claimed" in read.text


def test_an_estimate_is_called_one() -> None:
    assert "None of the items" in (text := Read(html(estimated())).text) and "is estimated" in text
    demo = example()
    running = Read(html(replace(demo, head=replace(demo.head, is_over=False, clock="accelerated")))).text
    assert "The month is not over" in running and "nothing to file" in running


def test_very_many_rows_are_cut_and_it_is_said() -> None:
    page = html(crowded(MOST_ROWS + 7))
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 7} rows" in page
    assert f"The 15 largest of {MOST_ROWS + 7} are drawn" in page
    assert "line 399" in page and "line 400<" not in page


def test_the_books_are_in_no_drawing_together() -> None:
    for figure in re.findall(r"<figure>.*?</figure>", html(example()), re.DOTALL):
        kinds = {kind for kind in ("impact", "inventory") if re.search(rf'class="{kind}[" -]', figure)}
        assert len(kinds) <= 1, figure[:200]


def test_the_documentation_names_every_section() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    table = page.partition("| chapter |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_.]+)`", table)) == set(sections())


def test_a_budget_under_which_nothing_ran_is_not_called_unknown() -> None:
    made = example()
    nothing = replace(made.product_lines[0].impact, known_g=None, provisional_g=Decimal(0), settled_g=Decimal(0))
    row = replace(made.product_lines[0], items=0, energy_uj=0, spent_g=Decimal(0), impact=nothing, used_share=0.0)
    page = html(replace(made, product_lines=(row,)))
    drawing = page.partition("Spent by product line, impact book")[2].partition("</svg>")[0]
    assert ">0\xa0mgCO2e<" in drawing
    assert "unknown" not in drawing


def test_co2_alone_is_told_where_the_unit_says_co2e() -> None:
    made = example()
    assert "CO2 alone" not in html(made).partition("Product lines")[0]
    alone = replace(made, inventory=tuple(replace(row, gas="co2") for row in made.inventory))
    assert "Average rates are of CO2 alone" in html(alone)


def test_a_days_saving_can_be_computed_from_what_stands_beside_it() -> None:
    made = example()
    days = html(made).partition("The days of the month")[2].partition("</table>")[0]
    assert made.days[0].compared_emission_g == Decimal("0.6")
    assert "600.0 emitted" in days or "0.600 emitted" in days
