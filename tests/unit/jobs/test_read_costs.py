"""What files cost their readers, and which of them compaction takes for that."""

from __future__ import annotations

import msgspec
import pytest
from epochlake.jobs.replicas.files import DataFile, path_of
from epochlake.jobs.replicas.intervals import NO_LINEAGE, all_of
from epochlake.jobs.upkeep.compacting import EVERYTHING, CompactionPolicy, Weighed, choose, weigh
from epochlake.jobs.upkeep.comparing import Range
from epochlake.jobs.upkeep.read_costs import ReadCost, Stretch, apart, cost, depth, stretch_of, together
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.tokens import MIN_TOKEN, range_label
from hypothesis import given
from hypothesis import strategies as st

TABLE = Table("t-1", "air", "flights", (Column("id", "bigint", False),), ("id",))
RANGE = Range(0, 0, "0-0", 0, 999, (1, 2, 3))
DEFAULT = CompactionPolicy()
SECOND = 1_000_000
NOW = 10_000_000 * SECOND
MB = 1 << 20

STRETCHES = st.lists(
    st.builds(
        lambda first, width, rows, size: Stretch(first, first + width, rows, size),
        st.integers(0, 100),
        st.integers(0, 30),
        st.integers(1, 10**6),
        st.integers(1, 10**8),
    ),
    max_size=8,
)


def file(
    name: str, size: int, first: int = 0, last: int = 999, ago: float = 1.0, deletes: bool = False, rows: int = 0
) -> DataFile:
    at = NOW - int(ago * SECOND)
    path = path_of(range_label(0, 999), name)
    return DataFile(name, "0-0", path, size, rows or max(1, size // 20), first, last, at, at, deletes)


def weighed(files: list[DataFile], policy: CompactionPolicy = DEFAULT, table: Table = TABLE) -> Weighed:
    return weigh(table, RANGE, files, NO_LINEAGE, policy, MIN_TOKEN, NOW)


def taken(files: list[DataFile], policy: CompactionPolicy = DEFAULT) -> set[str]:
    chosen = choose(TABLE, RANGE, files, NO_LINEAGE, policy, MIN_TOKEN, NOW)
    return set() if chosen is None else {part.file.file_id for part in chosen.parts}


# --- the cost of reading --------------------------------------------------------------------------------------------


@given(STRETCHES, st.randoms())
def test_the_order_of_files_does_not_change_what_they_cost(stretches: list[Stretch], dice: object) -> None:
    shuffled = list(stretches)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert cost(shuffled, append_only=False) == cost(stretches, append_only=False)


@given(STRETCHES, STRETCHES)
def test_files_of_ranges_that_are_apart_cost_what_they_cost_alone(one: list[Stretch], other: list[Stretch]) -> None:
    moved = [msgspec.structs.replace(each, first=each.first + 1000, last=each.last + 1000) for each in other]
    assert cost([*one, *moved], append_only=False) == cost(one, append_only=False) + cost(moved, append_only=False)


@given(STRETCHES.filter(bool))
def test_another_file_never_makes_reads_cheaper(stretches: list[Stretch]) -> None:
    for number in range(len(stretches)):
        fewer = stretches[:number] + stretches[number + 1 :]
        assert cost(fewer, append_only=False).work < cost(stretches, append_only=False).work


@given(STRETCHES.filter(bool))
def test_only_rows_of_files_that_share_tokens_are_merged_and_of_append_only_tables_none(
    stretches: list[Stretch],
) -> None:
    def shares(one: int) -> bool:
        return any(
            one != other and stretches[one].first <= two.last and two.first <= stretches[one].last
            for other, two in enumerate(stretches)
        )

    merged = [one for number, one in enumerate(stretches) if shares(number)]
    found = cost(stretches, append_only=False)
    assert (found.merged_rows, found.merged_files) == (sum(one.rows for one in merged), len(merged))
    assert found.rows == sum(one.rows for one in stretches)
    assert found.depth == depth(stretches)
    assert cost(stretches, append_only=True).merged_rows == 0


@given(STRETCHES.filter(bool))
def test_what_is_apart_overlaps_nothing_and_everything_else_overlaps_it(stretches: list[Stretch]) -> None:
    large = apart(stretches)
    assert sum(depth([one, other]) - 1 for one in large for other in large if one is not other) == 0
    left = list(stretches)
    for one in large:
        left.remove(one)
    for one in left:
        assert any(depth([one, other]) == 2 and other.bytes >= one.bytes for other in large)


@given(st.lists(st.integers(1, 50 * MB), min_size=1, max_size=6))
def test_files_that_are_put_together_cost_no_more_than_before(sizes: list[int]) -> None:
    files = [file(str(number), size) for number, size in enumerate(sizes)]
    best = cost([together([stretch_of(all_of(one)) for one in files], 128 * MB)], append_only=False)
    before = cost([stretch_of(all_of(one)) for one in files], append_only=False)
    assert best.work <= before.work
    assert best.rows == before.rows
    assert before.times(best) >= 1.0


def test_a_part_of_a_file_costs_its_share_and_nothing_costs_nothing() -> None:
    part = msgspec.structs.replace(all_of(file("a", 1000, rows=100)), low=0, high=249)
    assert stretch_of(part) == Stretch(0, 249, 25, 250)
    assert ReadCost().times(ReadCost()) == 1.0


# --- what is compacted for it ---------------------------------------------------------------------------------------


def test_one_delete_makes_reads_of_a_large_file_several_times_as_long_and_is_merged_when_it_rests() -> None:
    large = file("large", 100 * MB, ago=5000)
    for ago, expected in ((1.0, set()), (590.0, set()), (610.0, {"large", "delete"})):
        files = [large, file("delete", 3000, first=500, last=500, ago=ago, deletes=True)]
        assert taken(files) == expected, ago
        found = weighed(files)
        assert 1.9 < found.now.times(found.best) < 2.5
        if not expected:
            assert found.due_at == NOW + int((600 - ago) * SECOND)
        else:
            assert found.saves > 0.45 * found.now.work
            assert found.chosen is not None
            assert found.chosen.reason == "a read takes 2.0 times as long"


def test_the_more_is_to_be_rewritten_the_longer_it_has_to_rest() -> None:
    files = [file(f"{number}", 128 * MB, 250 * number, 250 * number + 249, ago=10**6) for number in range(4)]
    small = file("upsert", 3000, ago=700)
    assert taken([*files, small]) == set()
    assert taken([*files, msgspec.structs.replace(small, max_written_at=NOW - 2500 * SECOND)]) == {
        *"0123",
        "upsert",
    }


def test_what_overlaps_a_large_file_is_merged_with_it_at_a_share_of_its_bytes_and_among_itself_before() -> None:
    large = file("large", 100 * MB)
    few = [file(f"s{number}", MB) for number in range(7)]
    assert taken([large, *few[:5]]) == set()
    assert taken([large, *few]) == {one.file_id for one in few}, "a read merges more than 6 files for one key"
    assert taken([large, *(file(f"s{number}", 5 * MB) for number in range(5))]) == {
        "large",
        *(f"s{number}" for number in range(5)),
    }
    assert taken([large, file("one", 24 * MB)]) == set(), "one file is no reason yet"
    assert taken([large, file("one", 33 * MB)]) == {"large", "one"}


def test_a_few_small_files_are_merged_already_where_opening_them_is_what_reads_pay_for() -> None:
    small = [file(f"s{number}", 20_000) for number in range(4)]
    names = {one.file_id for one in small}
    assert taken([file("large", 2 * MB), *small]) == names
    assert taken([file("large", 2 * MB), *small[:3]]) == set(), "fewer than half of what is too many"
    assert taken([file("large", 100 * MB), *small]) == set(), "reads would hardly notice"


def test_files_beside_what_overlaps_are_left_where_they_are() -> None:
    beside = file("beside", 10 * MB, 600, 999, ago=5000)
    overlapping = [file("large", 10 * MB, 0, 500, ago=5000), file("over", MB, 0, 500, ago=5000)]
    found = weighed([beside, *overlapping])
    assert found.chosen is not None
    assert {part.file.file_id for part in found.chosen.parts} == {"large", "over"}
    assert not found.chosen.whole
    assert found.after.merged_rows == 0
    assert found.cost_with([file("c-new", 11 * MB, 0, 500)]).work == found.after.work


def test_a_little_overlap_beside_much_that_is_apart_is_not_worth_it() -> None:
    large = [file(f"{number}", 100 * MB, 200 * number, 200 * number + 199, ago=10**6) for number in range(4)]
    little = [file("a", MB, 900, 910, ago=10**6), file("b", MB, 900, 910, ago=10**6)]
    assert taken([*large, *little]) == set()


def test_append_only_tables_are_compacted_for_the_number_of_their_files_alone() -> None:
    table = msgspec.structs.replace(TABLE, append_only=True)
    files = [file("large", 100 * MB, ago=5000), *(file(f"s{number}", 3 * MB, ago=5000) for number in range(6))]
    assert weighed(files, table=table).chosen is None
    assert weighed([*files, file("7", MB), file("8", MB)], table=table).chosen is not None


def test_everything_still_takes_every_file_of_a_range() -> None:
    files = [file("large", 100 * MB, 0, 500), file("over", MB, 0, 500), file("beside", MB, 600, 999)]
    assert taken(files, EVERYTHING) == {"large", "over", "beside"}


@given(
    st.integers(1, 30),
    st.integers(50, 200),
    st.floats(0.02, 0.2),
)
def test_endless_upserts_rewrite_a_bounded_multiple_of_what_is_written(percent: int, count: int, share: float) -> None:
    """A simulation without superseded rows taken out of sight: the large file stays as large as it is."""
    large_size = 100 * MB
    files = [file("large", large_size)]
    written = rewritten = 0
    for number in range(count):
        size = max(1, percent * large_size // 1000)
        files.append(file(f"w{number}", size))
        written += size
        found = weighed(files, CompactionPolicy(share=max(share, 0.1)))
        if found.chosen is not None:
            names = {part.file.file_id for part in found.chosen.parts}
            rewritten += found.chosen.size
            left = [one for one in files if one.file_id not in names]
            size = large_size if "large" in names else sum(one.size for one in files if one.file_id in names)
            files = [*left, file("large" if "large" in names else f"m{number}", size)]
        assert len(files) < 12
        assert weighed(files).now.depth <= 8
    assert rewritten <= (1 / max(share, 0.1) + 8) * written + large_size


@pytest.mark.parametrize("append_only", [False, True])
@pytest.mark.parametrize("large_size", [0, 20 * MB])
def test_endless_writes_that_many_ranges_share_rewrite_a_bounded_multiple_in_each(
    append_only: bool, large_size: int
) -> None:
    """Of 64 ranges this one is put together by itself, as what its neighbours have is elsewhere. It has a small share
    of each file: what became of that was far smaller than the next file, so all of the range was put together anew.
    """
    ranges, size, writes = 64, MB, 120
    table = msgspec.structs.replace(TABLE, append_only=append_only)
    files = [file("large", large_size)] if large_size else []
    rewritten = 0
    for number in range(writes):
        label = range_label(0, 1000 * ranges - 1)
        shared = file(f"w{number}", size, last=1000 * ranges - 1)
        files.append(msgspec.structs.replace(shared, label=label, path=path_of(label, shared.file_id)))
        while (chosen := weighed(files, table=table).chosen) is not None:
            names = {part.file.file_id for part in chosen.parts}
            assert len(names) > 1
            assert "large" not in names
            bytes_ = sum(stretch_of(part).bytes for part in chosen.parts)
            rewritten += bytes_
            files = [*(one for one in files if one.file_id not in names), file(f"m{number}", bytes_)]
        assert len(files) < 9
        assert weighed(files, table=table).now.depth <= 7
    assert rewritten <= 6 * writes * size // ranges


def test_the_two_that_differ_least_are_put_together_where_each_file_is_far_larger_than_all_smaller_ones() -> None:
    sizes = [1, 4, 20, 70, 400, 1600, 8000]
    files = [file(str(size), 1000 * size) for size in sizes]
    assert taken(files, CompactionPolicy(slower=float("inf"))) == {"20", "70"}
    assert taken([*files, file("new", 2000)], CompactionPolicy(slower=float("inf"))) == {"1", "4", "new"}


def test_old_deletes_of_other_ranges_are_no_reason_to_put_a_range_together() -> None:
    """What counts are the rows that a range has of a file, not all that the file has."""
    label = range_label(0, 99_999)
    shared = file("shared", 10_000, last=99_999, deletes=True, rows=1_000)
    shared = msgspec.structs.replace(shared, label=label, path=path_of(label, "shared"))
    own = file("own", 50_000, rows=5_000)

    def reason(*files: DataFile) -> str | None:
        found = choose(TABLE, RANGE, files, NO_LINEAGE, DEFAULT, NOW, NOW)
        return None if found is None else found.reason

    assert reason(own, shared) is None
    assert reason(own, file("mine", 10_000, deletes=True, rows=1_000)) == "old deletes"
    assert reason(shared) == "old deletes"
