"""Which neighbouring ranges share what their small files become, and what that is made of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import FilePart, overlap
from epochlake.jobs.upkeep.compacting import Chosen, Weighed
from epochlake.jobs.upkeep.comparing import Range
from epochlake.jobs.upkeep.neighbours import as_one, neighbours
from epochlake.jobs.upkeep.read_costs import ReadCost, Stretch

REPLICAS = (1, 2, 3)
EMPTY = 99


def a_file(number: int, size: int = 1) -> DataFile:
    window = "8000000000000000-8000000000000063"  # tokens 0 to 99
    rows = 0 if number >= EMPTY else 10
    return DataFile(f"f{number}", "", f"_tablet={window}/f{number}.parquet", size, rows, 0, 99, 1, 1, False)


def chosen(index: int, files: Sequence[DataFile], *, whole: bool = False) -> Weighed:
    """Of the range of the ten tokens from 10 times `index`; `whole`: nothing stays beside."""
    range_ = Range(index, index, f"t-{index}", 10 * index, 10 * index + 9, REPLICAS)
    parts = [FilePart(file, range_.low, range_.high) for file in files]
    of_rows = tuple(part for part in parts if part.file.rows)
    one = Chosen(range_, of_rows, tuple(part for part in parts if not part.file.rows), whole, "small files")
    beside = () if whole else (Stretch(range_.low, range_.high, 1000, 1000),)
    return Weighed(range_, ReadCost(), ReadCost(), ReadCost(), one, beside=beside)


def of(group: Sequence[Weighed]) -> list[Chosen]:
    return [one.chosen for one in group if one.chosen is not None]


def moved(one: Weighed, replicas: tuple[int, ...]) -> Weighed:
    return msgspec.structs.replace(one, range=msgspec.structs.replace(one.range, replicas=replicas))


def numbers(groups: Sequence[Sequence[Weighed]]) -> list[list[int]]:
    return [[one.range.index for one in group] for group in groups]


def test_neighbours_with_the_same_replicas_share_a_file_that_is_for_none_as_a_whole() -> None:
    files = [a_file(1), a_file(2)]
    four = [chosen(index, files) for index in range(4)]
    assert numbers(neighbours(reversed(four), 2)) == [[0, 1, 2, 3]], "a file of all of them counts once"
    assert numbers(neighbours(four, 1)) == [[0], [1], [2], [3]]
    assert numbers(neighbours([four[0], four[2], four[3]], 2)) == [[0], [2, 3]]
    assert numbers(neighbours([*four[:2], moved(four[2], (3, 1, 2)), moved(four[3], (1, 2, 4))], 2)) == [[0, 1, 2], [3]]
    assert numbers(neighbours([*four[:2], chosen(2, files, whole=True), four[3]], 2)) == [[0, 1], [2], [3]]
    own = [chosen(index, [*files, a_file(10 + index)]) for index in range(4)]
    assert numbers(neighbours(own, 4)) == [[0, 1], [2, 3]]


def test_what_is_put_together_is_what_was_chosen_of_each_range(seed: int) -> None:
    dice = random.Random(seed)
    files = [a_file(number, dice.randrange(1, 4)) for number in (*range(8), EMPTY, EMPTY + 1)]
    ranges = [
        chosen(index, dice.sample(files, dice.randrange(1, 9)), whole=dice.random() < 0.1)
        for index in range(10)
        if dice.random() < 0.9
    ]
    most = dice.choice([1, 6, 12, 1 << 20])
    groups = neighbours(ranges, most)
    assert [one for group in groups for one in group] == ranges
    for group in groups:
        joined = as_one(of(group))
        assert (joined.range.low, joined.range.high) == (group[0].range.low, group[-1].range.high)
        if len(group) == 1:
            assert [joined] == of(group)
            continue
        assert sum({part.file.file_id: part.file.size for part in joined.parts}.values()) <= most
        assert not joined.whole
        for kind in ("parts", "empty"):
            found: Sequence[FilePart] = getattr(joined, kind)
            places = sorted((part.file.file_id, part.low, part.high) for part in found)
            assert all(one[0] != other[0] or one[2] + 1 < other[1] for one, other in pairwise(places))
            for one in of(group):
                within = {
                    (part.file.file_id, *overlap((part.low, part.high), (one.range.low, one.range.high)))
                    for part in found
                    if part.low <= one.range.high and one.range.low <= part.high
                }
                assert within == {(part.file.file_id, part.low, part.high) for part in getattr(one, kind)}
