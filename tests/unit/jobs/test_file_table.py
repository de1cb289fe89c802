"""Files are chosen by arrays: what a read may leave unlooked at changes no row of it, and digests tell files apart."""

from __future__ import annotations

import random

from epochlake.jobs.replicas.files import MERGED, DataFile, path_of
from epochlake.jobs.replicas.intervals import Lineage, meet, select
from epochlake.jobs.replicas.states import FileTable, ReplicaState
from epochlake.placement.tokens import range_label

LAST = 63


def a_file(origin: str, window: tuple[int, int], tokens: set[int]) -> DataFile:
    """Every row of an origin with a token in a window."""
    held = sorted(token for token in tokens if window[0] <= token <= window[1])
    label = range_label(*window)
    first, last = (held[0], held[-1]) if held else (0, 0)
    name = f"{origin}.{label}"
    return DataFile(name, label, path_of(label, name), 10 + len(held), len(held), first, last, 1, 1, False)


def drawn(dice: random.Random) -> tuple[list[DataFile], dict[str, set[int]], Lineage]:
    """Files of some origins, whole and in pieces; merged ones stand for parts of others, and may have no row there."""
    rows: dict[str, set[int]] = {}
    files, lineage = [], {}
    for number in range(dice.randint(1, 6)):
        origin = f"{MERGED if number and dice.random() < 0.4 else ''}{number}"
        first = dice.randint(0, LAST)
        rows[origin] = set(dice.sample(range(first, LAST + 1), dice.randint(0, min(4, LAST + 1 - first))))
        if origin.startswith(MERGED):
            ends = sorted(dice.choices(range(LAST + 1), k=2))
            lineage[origin] = [(older, *ends) for older in list(rows)[:-1] if dice.random() < 0.7]
        for _ in range(dice.randint(1, 3)):
            low, high = (0, LAST) if dice.random() < 0.5 else sorted(dice.choices(range(LAST + 1), k=2))
            files.append(a_file(origin, (low, high), rows[origin]))
    return list({file.file_id: file for file in files}.values()), rows, lineage


def rows_of(files: list[DataFile], rows: dict[str, set[int]], low: int, high: int, lineage: Lineage) -> list[object]:
    return sorted(
        (part.file.origin, token)
        for part in select(files, low, high, lineage)
        for token in rows[part.file.origin]
        if part.low <= token <= part.high
    )


def test_what_shows_nothing_changes_nothing_that_is_read(seed: int) -> None:
    for number in range(2_000):
        dice = random.Random(seed + number)
        files, rows, lineage = drawn(dice)
        table = FileTable.of(files)
        low, high = sorted(dice.choices(range(LAST + 1), k=2))
        within, showing = table.within(low, high), table.showing(low, high)
        assert within == [file for file in files if meet(file.window, (low, high))], f"seed {seed + number}"
        assert rows_of(showing, rows, low, high, lineage) == rows_of(within, rows, low, high, lineage), (
            f"seed {seed + number}"
        )
        size = dice.randint(9, 15)
        assert table.smaller(low, high, size) == sum(file.size < size for file in within)


def test_a_merged_file_without_a_row_still_stands_for_what_it_replaced() -> None:
    """All rows from 0 to 9 were deleted, and a replica still has the file that they were in."""
    old, merged = a_file("a", (0, LAST), {3, 40}), a_file(f"{MERGED}b", (0, LAST), {40})
    showing = FileTable.of([old, merged]).showing(0, 9)
    assert select(showing, 0, 9, {f"{MERGED}b": [("a", 0, LAST)]}) == []
    assert [part.file for part in select(showing, 0, 9)] == [old], "as it would be read without the merged one"


def test_states_with_the_same_files_have_one_digest_and_others_another_one() -> None:
    files = [a_file(str(number), (0, LAST), {number}) for number in range(4)]

    def digest(*shown: DataFile) -> bytes:
        return ReplicaState(1, {}, None, {file.file_id: file for file in shown}).fingerprint

    assert digest(*files) == digest(*reversed(files))
    assert len({digest(*files[:count]) for count in range(5)} | {digest(*files[1:])}) == 6
