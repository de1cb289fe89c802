"""What arrays tell of a range with many files is what looking at one file after the other tells."""

from __future__ import annotations

import random

import msgspec
import pytest
from epochlake.jobs.replicas.files import MERGED, DataFile, path_of
from epochlake.jobs.replicas.intervals import NO_LINEAGE
from epochlake.jobs.replicas.states import FileTable
from epochlake.jobs.upkeep.compacting import CompactionPolicy, weigh
from epochlake.jobs.upkeep.comparing import Range
from epochlake.jobs.upkeep.many_files import Summary, many_layers, weigh_many
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, range_label

TABLE = Table("t-1", "air", "flights", (Column("id", "bigint", False),), ("id",))
NOW = 10_000_000 * 1_000_000
LAST = 999
MB = 1 << 20
ROUNDS = 600


def file(name: str, size: int, rows: int, tokens: tuple[int, int], ago: float, window: tuple[int, int]) -> DataFile:
    at = NOW - int(ago * 1_000_000)
    label = range_label(*window)
    return DataFile(name, label, path_of(label, name), size, rows, *tokens, at, at, False)


def drawn(dice: random.Random, last: int = LAST) -> list[DataFile]:
    """Files of hashed and of ordered tokens, large and small, old and new; some have no row, and some end elsewhere."""
    files = []
    width = dice.choice([0, 3, 50, last])
    for number in range(dice.randint(1, 40)):
        first = dice.randint(0, last)
        tokens = (first, min(last, first + dice.randint(0, width)))
        size = dice.choice([1_000, 1_000, dice.randint(1, 10 * MB), dice.randint(1, 300 * MB)])
        rows = dice.choice([0, 1, dice.randint(1, 10**6), dice.randint(1, 10**6)])
        files.append(file(f"f-{number}", size, rows, tokens, dice.choice([1.0, 650.0, 5_000.0]), (0, last)))
    return files


def policies(dice: random.Random) -> CompactionPolicy:
    return CompactionPolicy(
        small_files=dice.choice([2, 8, 30]),
        overlap=dice.choice([1, 6, 100]),
        tier=dice.choice([1.0, 2.0, float("inf")]),
        slower=dice.choice([1.0, 1.5, 3.0]),
        quicker=dice.choice([1.0, 1.1, 2.0]),
        share=dice.choice([0.01, 0.25]),
    )


def one_by_one(table: Table, range_: Range, files: list[DataFile], policy: CompactionPolicy) -> Summary:
    found = weigh(table, range_, files, NO_LINEAGE, policy, MIN_TOKEN, NOW)
    return Summary(
        found.now, found.best, None if found.chosen is None else found.chosen.size, found.due_at, found.until
    )


def by_arrays(table: Table, range_: Range, files: list[DataFile], policy: CompactionPolicy) -> Summary:
    layers = many_layers(FileTable.of(files), range_.low, range_.high)
    assert layers is not None
    return weigh_many(layers, table.append_only, policy, NOW)


@pytest.mark.parametrize("append_only", [False, True])
def test_arrays_tell_what_looking_at_one_file_after_the_other_tells(seed: int, append_only: bool) -> None:
    table = msgspec.structs.replace(TABLE, append_only=append_only)
    chosen = 0
    for number in range(ROUNDS):
        dice = random.Random(seed + number)
        files, policy = drawn(dice), policies(dice)
        low, high = (0, LAST) if dice.random() < 0.6 else sorted(dice.choices(range(LAST + 1), k=2))
        range_ = Range(0, 0, "0-0", low, high, (1, 2, 3))
        found = by_arrays(table, range_, files, policy)
        assert found == one_by_one(table, range_, files, policy), f"seed {seed + number}"
        chosen += found.due_bytes is not None
    assert 0 < chosen < ROUNDS


def test_files_all_over_the_ring_are_told_right_though_their_widths_are_no_signed_numbers() -> None:
    whole = Range(0, 0, "0-0", MIN_TOKEN, MAX_TOKEN, (1,))
    files = [
        file(f"f-{number}", 5_000, 100, (MIN_TOKEN + number, MAX_TOKEN - number), 1.0, (MIN_TOKEN, MAX_TOKEN))
        for number in range(20)
    ]
    assert by_arrays(TABLE, whole, files, CompactionPolicy()) == one_by_one(TABLE, whole, files, CompactionPolicy())
    half = msgspec.structs.replace(whole, low=0)
    assert by_arrays(TABLE, half, files, CompactionPolicy()).now.rows == 20 * 50


def test_pieces_of_one_file_and_files_that_stand_for_others_are_not_told_by_arrays() -> None:
    window = (0, LAST)
    one = file("f-1", 1_000, 10, window, 1.0, window)
    piece = file(f"f-1.{range_label(0, 99)}", 1_000, 10, (0, 99), 1.0, window)
    merged = file(f"{MERGED}2", 1_000, 0, (1, 0), 1.0, window)
    assert many_layers(FileTable.of([one, piece]), 0, LAST) is None
    assert many_layers(FileTable.of([one, merged]), 0, LAST) is None
    assert many_layers(FileTable.of([one]), 0, LAST) is not None
