"""Files of one origin as sets of intervals: compared with sets of rows, token by token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import msgspec
from epochlake.jobs.replicas.files import DataFile, cut_id, directory_of, path_of
from epochlake.jobs.replicas.intervals import FilePart, all_of, holds, merged, missing, rows_are_in, select, without
from epochlake.placement.tokens import range_label
from hypothesis import given
from hypothesis import strategies as st

LABEL = range_label(0, 19)
ROWS = {"a": {1, 2, 3, 8, 15}, "b": {4, 5, 6, 7, 12}, "c": set(range(20))}
"""The tokens of the rows of three origins, each staged for the tokens from 0 to 19."""

interval = st.tuples(st.integers(0, 19), st.integers(0, 19)).map(lambda ends: (min(ends), max(ends)))
asked = st.tuples(st.integers(-3, 22), st.integers(-3, 22)).map(lambda ends: (min(ends), max(ends)))


def file_of(origin: str, low: int = 0, high: int = 19) -> DataFile:
    """The file that was staged, or the piece that is cut out of it."""
    tokens = sorted(token for token in ROWS[origin] if low <= token <= high)
    whole = (low, high) == (0, 19)
    file_id = origin if whole else cut_id(origin, low, high)
    path = path_of(LABEL, origin) if whole else f"{directory_of(LABEL)}/{file_id}.parquet"
    first, last = (tokens[0], tokens[-1]) if tokens else (low, low)
    return DataFile(file_id, LABEL, path, 100 + len(tokens), len(tokens), first, last, 1, 1, False)


files = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.just((0, 19)), interval)).map(lambda one: file_of(one[0], *one[1])),
    max_size=6,
)


def rows(parts: Iterable[FilePart]) -> Counter[tuple[str, int]]:
    """The rows of parts, each as often as it is there."""
    return Counter(
        (part.file.origin, token)
        for part in parts
        for token in ROWS[part.file.origin]
        if max(part.low, part.file.window[0]) <= token <= min(part.high, part.file.window[1])
    )


def rows_of(held: Iterable[DataFile], low: int = -9, high: int = 99) -> set[tuple[str, int]]:
    return {(origin, token) for origin, token in rows(all_of(file) for file in held) if low <= token <= high}


def test_the_window_of_a_file_is_in_its_path() -> None:
    assert file_of("a").window == (0, 19)
    assert file_of("a", 4, 9).window == (4, 9)
    assert (file_of("a", 4, 9).origin, file_of("a", 4, 9).rows) == ("a", 1)


@given(files, asked)
def test_what_is_selected_has_every_row_of_the_range_exactly_once(
    held: list[DataFile], tokens: tuple[int, int]
) -> None:
    counted = rows(select(held, *tokens))
    assert set(counted) == rows_of(held, *tokens)
    assert set(counted.values()) <= {1}


@given(files, files, asked)
def test_what_is_missing_is_what_the_other_has_not_each_row_once(
    needed: list[DataFile], have: list[DataFile], tokens: tuple[int, int]
) -> None:
    counted = rows(missing(needed, have, *tokens))
    assert set(counted) == rows_of(needed, *tokens) - rows_of(have, *tokens)
    assert set(counted.values()) <= {1}


@given(files, asked)
def test_files_that_say_nothing_of_each_other_are_cut_to_the_range_as_any_are(
    needed: list[DataFile], tokens: tuple[int, int]
) -> None:
    alone = list({file.origin: file for file in needed}.values())
    unrelated = msgspec.structs.replace(file_of("a"), file_id="z", path=path_of(LABEL, "z"))
    assert missing(alone, (), *tokens) == missing(alone, [unrelated], *tokens)


@given(files, files, asked)
def test_nothing_is_missing_any_more_when_the_missing_pieces_have_been_cut(
    needed: list[DataFile], have: list[DataFile], tokens: tuple[int, int]
) -> None:
    cut = [
        part.file if part.whole else file_of(part.file.origin, part.low, part.high)
        for part in missing(needed, have, *tokens)
    ]
    assert missing(needed, [*have, *cut], *tokens) == []


@given(files, st.sampled_from("abc"), interval, st.integers(0, 19))
def test_a_replica_holds_a_file_as_itself_in_pieces_or_in_a_wider_one_and_never_without_its_rows(
    have: list[DataFile], origin: str, window: tuple[int, int], middle: int
) -> None:
    file = file_of(origin, *window)
    if holds(have, file):
        assert rows_of([file]) <= rows_of(have)
    assert holds([*have, file], file)
    assert holds([*have, file_of(origin)], file)
    assert holds([*have, file_of(origin, 0, middle), file_of(origin, min(middle + 1, 19), 19)], file)


@given(st.lists(interval, max_size=5), interval)
def test_intervals_are_sets_of_tokens(covered: list[tuple[int, int]], whole: tuple[int, int]) -> None:
    tokens = {token for low, high in covered for token in range(low, high + 1)}
    left = without(whole, covered)
    assert {t for low, high in left for t in range(low, high + 1)} == set(range(whole[0], whole[1] + 1)) - tokens
    fewest = merged(covered)
    assert {t for low, high in fewest for t in range(low, high + 1)} == tokens
    assert all(before[1] + 1 < after[0] for before, after in pairwise(fewest))


def test_a_piece_without_rows_is_missed_until_the_target_knows_that_there_are_none() -> None:
    empty = file_of("a", 9, 14)
    assert empty.rows == 0
    assert missing([empty], [], 0, 19) == [FilePart(empty, 9, 14)]
    assert missing([empty], [empty], 0, 19) == []
    assert missing([file_of("a")], [empty, file_of("a", 0, 8)], 0, 19) == [FilePart(file_of("a"), 15, 19)]
    assert select([empty], 0, 19) == []


def test_a_history_of_merges_may_be_as_deep_as_years_make_it() -> None:
    depth = 5_000
    replaced = {f"c-{number}": [(f"c-{number - 1}", 0, 19)] for number in range(1, depth)} | {"c-0": [("a", 0, 19)]}
    first = file_of("a")
    newest = msgspec.structs.replace(first, file_id=f"c-{depth - 1}")
    assert rows_are_in([first], newest, 0, 19, {}, replaced)
    assert not rows_are_in([], newest, 0, 19, {}, replaced)
