"""What is kept for tables at one epoch."""

from __future__ import annotations

from epochlake.jobs.gate.kept import KeptByTable

TABLE = "a table"


def test_a_value_is_made_once_for_an_epoch() -> None:
    kept: KeptByTable[list[int]] = KeptByTable()
    first = kept.of(5, TABLE, lambda: [5])
    assert kept.of(5, TABLE, lambda: [0]) is first
    assert kept.of(6, TABLE, lambda: [6]) == [6]
    assert kept.of(5, TABLE, lambda: [7]) == [7]


def test_an_epoch_is_never_given_what_was_made_for_another_one_meanwhile() -> None:
    kept: KeptByTable[int] = KeptByTable()

    def overtaken() -> int:
        kept.of(6, TABLE, lambda: 6)  # another thread is at a later epoch before this one has its value
        return 5

    assert kept.of(5, TABLE, overtaken) == 5
    assert kept.of(6, TABLE, lambda: 6) == 6
