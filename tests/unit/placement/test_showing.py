"""How documents show themselves: nothing that is there is hidden, and nothing that somebody wrote becomes markup."""

from __future__ import annotations

from enum import StrEnum

import msgspec
import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.showing import ROWS, WIDEST, Listing, Shown, cell, duration, html_of, plural, size, text_of


class Colour(StrEnum):
    RED = "red"


class Part(Shown, msgspec.Struct, frozen=True):
    name: str
    bytes: int | None
    part_id: str = "0f3b8c1e-6f0e-4a55-9d1c-5d1f7a0e6b11"
    old: bool = False
    weight: float = 1.0


class Whole(Shown, msgspec.Struct, frozen=True):
    title: str
    epoch: int
    rows: int
    fine: bool
    parts: tuple[Part, ...] = ()
    reasons: dict[str, str] = {}
    first: Part | None = None
    tags: tuple[str, ...] = ()


WHOLE = Whole(
    "a <b>", 123456, 123456, True, (Part("one", 1500), Part("two", None)), {"n1": "full"}, Part("x", 7), ("a",)
)


def test_a_document_is_lines_and_tables() -> None:
    assert text_of(WHOLE).splitlines() == [
        "title    a <b>",
        "epoch    123456",
        "rows     123,456",
        "fine     yes",
        "parts",
        "  name  bytes",
        "  one   1.5 kB",
        "  two   -",
        "reasons  n1=full",
        "first    name x, bytes 7 B",
        "tags     a",
    ]
    assert str(WHOLE) == text_of(WHOLE)
    assert repr(WHOLE).startswith("Whole(title='a <b>', epoch=123456"), "logs and tests see all of it"


def test_markup_is_escaped() -> None:
    mean = "<script>alert(1)</script>"
    shown = [Whole(mean, 1, 1, True, (Part(mean, 1),), {mean: mean}), Listing([Part(mean, 2)])]
    for document in shown:
        html = html_of(document)
        assert "<script>" not in html
        assert "&lt;script&gt;" in html
    error = InvalidRequest(f"no {mean}", hint=f"try {mean}")
    assert "<script>" not in error._repr_html_()
    assert "<b>InvalidRequest</b>" in error._repr_html_()
    assert "<em>try" in error._repr_html_()


def test_what_is_as_usual_is_left_out_of_tables_and_what_is_not_is_there() -> None:
    usual, other = Part("one", 1), Part("two", 2, "short", True, 2.5)
    assert text_of(Listing([usual])) == "name  bytes\none   1 B"
    assert text_of(Listing([usual, other])).splitlines()[0].split() == ["name", "bytes", "old", "weight"]
    assert "2.5" in text_of(Listing([other]))


class Column(msgspec.Struct, frozen=True):
    name: str
    nullable: bool = True


def test_what_is_no_where_it_usually_is_yes_is_told() -> None:
    assert text_of(Listing([Column("id", False), Column("note")])) == "name  nullable\nid    no\nnote  yes"
    assert text_of(Listing([Column("id"), Column("note")])) == "name\nid\nnote"


def test_a_listing_is_a_tuple_that_shows_itself() -> None:
    listing = Listing([Part("one", 1)])
    assert listing == (Part("one", 1),)
    assert listing[0].name == "one"
    assert repr(listing) == text_of(listing)
    assert msgspec.json.encode(listing) == msgspec.json.encode([Part("one", 1)])
    assert repr(Listing()) == "nothing"
    assert "nothing" in Listing()._repr_html_()


def test_long_tables_say_how_much_more_there_is() -> None:
    long = Listing(Part(f"p{number}", number) for number in range(ROWS + 1234))
    assert text_of(long).splitlines()[-1] == "… and 1,234 more"
    assert "and 1,234 more" in html_of(long)
    assert html_of(long).count("<tr>") == ROWS + 1


def test_long_text_is_cut_on_a_terminal_and_whole_in_a_notebook() -> None:
    long = Listing([Part("word " * 40, 1)])
    assert max(map(len, text_of(long).splitlines())) <= WIDEST + 10
    assert "word " * 39 in html_of(long)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("rows", 1234567, "1,234,567"),
        ("epoch", 1234567, "1234567"),
        ("node_id", 1234567, "1234567"),
        ("token", -(2**63), str(-(2**63))),
        ("bytes_before", 1234567, "1.23 MB"),
        ("stored_bytes", 999, "999 B"),
        ("capacity", 10**12, "1 TB"),
        ("share", 0.123456, "0.1235"),
        ("kind", Colour.RED, "red"),
        ("fine", False, "no"),
        ("nothing", None, "-"),
        ("names", tuple("abcdefghij"), "a, b, c, d, e, f, … (10 in all)"),
        ("parts", (Part("a", 1),) * 3, "3"),
    ],
)
def test_values_are_told_by_their_kind(name: str, value: object, told: str) -> None:
    assert cell(name, value) == told


def test_sizes_have_three_digits() -> None:
    assert [size(count) for count in (None, 0, 999, 1000, 1_234_567, 5 * 10**18)] == [
        None,
        "0 B",
        "999 B",
        "1 kB",
        "1.23 MB",
        "5e+03 PB",
    ]


@pytest.mark.parametrize(
    ("count", "told"), [(999, "999 B"), (1_000, "1 kB"), (999_499, "999 kB"), (999_500, "1 MB"), (999_949_999, "1 GB")]
)
def test_sizes_have_three_digits_and_no_powers_of_ten(count: int, told: str) -> None:
    assert size(count) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (90, "90 seconds"),
        (5_400.0, "90 minutes"),
        (86_400, "1 day"),
        (172_800.0, "2 days"),
        (129_600, "36 hours"),
        (0.5, "0.5 seconds"),
        (float("inf"), "inf seconds"),
        (1e300, "1e+300 seconds"),
        (1000 * 365 * 86_400, "365,000 days"),
    ],
)
def test_a_duration_is_told_as_it_was_given(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_one_of_a_thing_is_one() -> None:
    assert (plural(1, "tablet"), plural(2_000, "row")) == ("1 tablet", "2,000 rows")
