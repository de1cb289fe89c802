"""What a hint says where there is no such name."""

from __future__ import annotations

from epochlake.placement.near_names import nearest, told


def test_the_nearest_name_is_found_in_any_case_or_none_is_guessed() -> None:
    known = ["air.flights", "air.Crews", "shop.orders"]
    assert nearest("AIR.FLIGHTS", known) == "air.flights"
    assert nearest("air.crew", known) == "air.Crews"
    assert nearest("zebra", known) is None
    assert nearest("", known) is None
    assert nearest("x", []) is None


def test_of_a_thousand_names_some_are_told_and_how_many_more_there_are() -> None:
    names = told(f"t{number:04}" for number in range(1_000))
    assert names.startswith("t0000, t0001, ")
    assert names.endswith("t0019, … and 980 more")
    assert told(["b", "a"]) == "a, b"
    assert told([]) == "none"
