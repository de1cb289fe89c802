"""Compaction whose merges are done near the disks: agents make what this process makes, and no lie is committed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from epochlake.jobs.agent import merging
from epochlake.jobs.agent.agent_workers import MOST_BYTES, _merge_task, _orders
from epochlake.jobs.agent.merging import MergeRefused, Merging
from epochlake.jobs.agent.messages import PROTOCOL, Tag
from epochlake.jobs.agent.task_messages import (
    MOST_TASKS,
    MergeSource,
    ResolvedPlace,
    Task,
    TaskKind,
    TaskOrder,
    Work,
    malformed,
)
from epochlake.jobs.replicas import row_groups
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.merging import MergedFile
from epochlake.jobs.replicas.merging_near import RangeMerged, RangeMerger, RangeToMerge
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.compaction_track import CompactionTrack
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.slices import sliced
from tests.support.storages import STORAGE
from tests.support.versions import compact_here, read_versions, write_versions

T = TypeVar("T")
R = TypeVar("R")
Lie = Callable[[RangeMerged], RangeMerged]

pytestmark = sliced()  # of most tests one of the two kinds of table


class NearDisks:
    """Workers of which each merge is done as the process of an agent does it, and told as JSON; `lie` changes what is
    told.
    """

    def __init__(self, table: SmallCluster, lie: Lie = lambda told: told) -> None:
        self.table = table
        self.lie = lie
        self.merged: list[RangeMerged] = []
        self.by_itself = 0
        self.merging = Merging(STORAGE.settings)

    def run(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R]) -> list[R]:
        if not isinstance(task, RangeMerger):
            return ThreadWorkers(2).run(task, items, returns=returns)
        return [self._one(task, item) for item in items]

    def each(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R]) -> Iterator[tuple[T, R]]:
        return ThreadWorkers(2).each(task, items, returns=returns)

    def _one(self, task: Any, item: Any) -> Any:
        try:
            done = do(self.merging, self.table, item)
        except (MergeRefused, StorageUnavailable):
            self.by_itself += 1
            return task(item)
        self.merged.append(done)
        return msgspec.json.decode(msgspec.json.encode(self.lie(done)), type=RangeMerged)


def do(merge: Merging, table: SmallCluster, item: RangeToMerge, sign: Callable[[], None] = lambda: None) -> RangeMerged:
    made = _merge_task(table.metadata, 0, item)
    assert made is not None
    assert item.home is not None
    home = item.home
    order = TaskOrder(Tag("lake", "id"), PROTOCOL, "n", "o", (made,))
    assert malformed(msgspec.json.decode(msgspec.json.encode(order), type=TaskOrder)) is None
    assert made.merge is not None
    place = ResolvedPlace(home.cluster_id, "d1", home.volume_id, home.volume_uri, home.directory, home.table_id)
    work = Work(1, TaskKind.MERGE, made.file, made.low, made.high, place, None, "", 0.0, made.merge)
    return merge.done(work, made.merge, home, sign)


def compact_near(table: SmallCluster, workers: NearDisks, **options: object) -> Any:
    return compact_here(table, merger=None, workers=workers, **options)


def stored(table: SmallCluster, node: str) -> set[str]:
    """The merged files on a disk, whoever names them."""
    return {path.stem for path in Path(table.address(node).uri).rglob("c-*.parquet")}


def live(table: SmallCluster, node: str) -> dict[str, DataFile]:
    return dict(open_snapshot(table.address(node)).all_files)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(compaction, "live_leases", lambda cluster: [])  # so deletes may be forgotten
    return with_rows(placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}))


@pytest.fixture(params=[False, True], ids=["versions", "append-only"])
def either(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(compaction, "live_leases", lambda cluster: [])  # so deletes may be forgotten
    return with_rows(placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, append_only=request.param))


def with_rows(table: SmallCluster) -> SmallCluster:
    for part in range(3):
        write_versions(table, {row: f"note {row}" for row in range(40) if row % 3 == part})
    return table


EXPECTED = [(row, f"note {row}") for row in range(40)]


def assert_compacted(table: SmallCluster) -> None:
    """Every replica has the same merged files and nothing else, with the same bytes, and each alone shows all rows."""
    assert read_versions(table, "ALL") == EXPECTED
    named = [{id_: file for id_, file in live(table, node).items() if file.rows} for node in "ABC"]
    assert named[0] == named[1] == named[2]
    assert all(file.is_merged for file in named[0].values())
    for file in named[0].values():
        bytes_of = {Path(table.address(node).uri, file.path).read_bytes() for node in "ABC"}
        assert len(bytes_of) == 1
    for lost in ("AB", "BC", "AC"):
        with table.without(lost):
            assert read_versions(table, "ONE") == EXPECTED


@pytest.mark.parametrize("in_parts", [False, True])
def test_what_is_merged_on_one_replica_is_brought_to_the_others_and_committed(
    either: SmallCluster, monkeypatch: pytest.MonkeyPatch, in_parts: bool
) -> None:
    more: dict[str, object] = {}
    if in_parts:
        monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 1)
        more["target_file_bytes"] = 2 * max(file.size for file in live(either, "A").values()) + 2
    workers = NearDisks(either)
    report = compact_near(either, workers, **more)
    assert report.complete
    assert (len(report.compacted), len(workers.merged), workers.by_itself) == (2, 2, 0)
    assert {one.stored_on for one in workers.merged} <= {(volume,) for volume in either.volumes("ABC")}
    assert any(len(one.files) > 1 for one in workers.merged) == in_parts
    assert_compacted(either)


def test_winners_and_deletes_are_those_of_any_compaction(table: SmallCluster) -> None:
    write_versions(table, {1: "b", 2: None})
    write_versions(table, {2: "c", 3: None})
    workers = NearDisks(table)
    assert compact_near(table, workers, tombstone_grace_seconds=3600.0).complete
    kept = {1: "b", 2: "c"} | {row: f"note {row}" for row in range(40) if row not in (1, 2, 3)}
    assert read_versions(table, "ALL") == sorted(kept.items())
    assert any(file.has_tombstones for file in live(table, "A").values()), "no delete is forgotten before its time"
    write_versions(table, {4: "d"})
    compact_near(table, workers)
    assert not any(file.has_tombstones for file in live(table, "A").values())
    assert read_versions(table, "ALL") == sorted((kept | {4: "d"}).items())
    assert workers.by_itself == 0


def test_that_nothing_is_left_of_a_range_is_found_out_here(table: SmallCluster) -> None:
    write_versions(table, dict.fromkeys(range(40), None))
    workers = NearDisks(table)
    compact_near(table, workers)
    assert [one.files for one in workers.merged] == [(), ()]
    assert read_versions(table, "ALL") == []
    assert [file.rows for file in live(table, "B").values()] == [0, 0]


def test_the_track_of_the_coordinator_has_its_waves_merged_near_the_disks(table: SmallCluster) -> None:
    for number in range(9):
        write_versions(table, {row: f"{number} {row}" for row in range(40)})
    workers = NearDisks(table)
    track = CompactionTrack(table.cluster, begin=lambda task: task(), workers=workers)
    compacted = [track.advance(table.metadata) for _ in range(4)]
    assert any(compacted)
    assert (len(workers.merged), workers.by_itself) == (2, 0)
    assert read_versions(table, "ALL") == [(row, f"8 {row}") for row in range(40)]


def changed(told: RangeMerged, **words: object) -> RangeMerged:
    """The last file is said to be otherwise."""
    *before, last = told.files
    return msgspec.structs.replace(
        told, files=(*before, msgspec.structs.replace(last, file=msgspec.structs.replace(last.file, **words)))
    )


def of(told: RangeMerged) -> DataFile:
    return told.files[-1].file


LIES: dict[str, Lie] = {
    "nothing is left": lambda told: msgspec.structs.replace(told, files=()),
    "it is on all replicas": lambda told: msgspec.structs.replace(told, stored_on=(1, 2, 3)),
    "it is on no replica": lambda told: msgspec.structs.replace(told, stored_on=()),
    "one volume has failed": lambda told: msgspec.structs.replace(
        told, files=(msgspec.structs.replace(told.files[0], failed={1: "full"}), *told.files[1:])
    ),
    "a file outside": lambda told: changed(told, path=f"../../../{of(told).file_id}.parquet"),
    "an absolute file": lambda told: changed(told, path=f"/etc/{of(told).file_id}.parquet"),
    "a file of the log": lambda told: changed(told, path=f"_delta_log/{of(told).file_id}.parquet"),
    "a file of no compaction": lambda told: changed(told, file_id=of(told).file_id[2:]),
    "a piece of a file": lambda told: changed(told, file_id=of(told).file_id + ".0-f"),
    "another label": lambda told: changed(told, label="another"),
    "a file that is not there": lambda told: changed(
        told, file_id="c-1", path=of(told).path.replace(of(told).file_id, "c-1")
    ),
    "the same file twice": lambda told: msgspec.structs.replace(told, files=told.files * 2),
    "a part of the range": lambda told: msgspec.structs.replace(told, files=told.files[:-1] or ()),
    "another size": lambda told: changed(told, size=of(told).size + 1),
    "more rows": lambda told: changed(told, rows=1000),
    "fewer rows": lambda told: changed(told, rows=of(told).rows - 1),
    "no rows": lambda told: changed(told, rows=0),
    "other tokens": lambda told: changed(told, min_token=of(told).min_token + 1),
    "tokens of another range": lambda told: changed(told, min_token=-(2**63), max_token=2**63 - 1),
    "another time": lambda told: changed(told, max_written_at=of(told).max_written_at + 1),
    "deletes": lambda told: changed(told, has_tombstones=True),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_lie_of_an_agent_is_committed_and_the_range_is_merged_here(
    table: SmallCluster, caplog: pytest.LogCaptureFixture, lie: str
) -> None:
    workers = NearDisks(table, LIES[lie])
    assert compact_near(table, workers).complete
    assert len(workers.merged) == 2
    assert caplog.text.count("is merged here") == 2
    assert_compacted(table)
    told = {one.file.file_id for made in workers.merged for one in made.files}
    assert told.isdisjoint(live(table, "A") | live(table, "B") | live(table, "C"))


def test_an_answer_of_yesterday_names_what_is_taken(table: SmallCluster) -> None:
    before: list[RangeMerged] = []

    def repeats(told: RangeMerged) -> RangeMerged:
        before.append(told)
        return before[len(before) % 2 - 1 if len(before) > 2 else -1]

    workers = NearDisks(table, repeats)
    compact_near(table, workers)
    first = set(live(table, "A"))
    for part in range(2):
        write_versions(table, {row: f"note {row}" for row in range(part, 40, 2)})
    compact_near(table, workers)
    assert_compacted(table)
    assert first.isdisjoint(live(table, "A"))


def test_a_replica_that_cannot_take_a_copy_keeps_the_range_as_it_is(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = table.address("C").uri
    copy_file = Storage.copy_file

    def refuse(self: Storage, source: str, target: str) -> Any:
        if target.startswith(full):
            raise StorageUnavailable("no space is left")
        return copy_file(self, source, target)

    monkeypatch.setattr(Storage, "copy_file", refuse)
    workers = NearDisks(table)
    report = compact_near(table, workers)
    home = {one.stored_on for one in workers.merged}
    assert home != {tuple(table.volumes("C"))}
    assert not report.complete
    assert read_versions(table, "ALL") == EXPECTED
    monkeypatch.undo()


def to_merge(table: SmallCluster, caught: list[RangeToMerge]) -> RangeToMerge:
    """The merge of a range, which is not done."""

    class Stops(NearDisks):
        def _one(self, task: Any, item: Any) -> Any:
            caught.append(item)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact_near(table, Stops(table))
    return caught[0]


class GivenUp(Exception):
    pass


def test_a_merge_that_fails_or_is_given_up_leaves_nothing_behind(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = to_merge(table, [])
    assert asked.home is not None
    node = next(node for node in "ABC" if table.address(node).uri == asked.home.uri)
    merges = Merging(STORAGE.settings)
    signs = iter(range(1000))

    def gives_up() -> None:
        if next(signs) == 3:
            raise GivenUp

    with pytest.raises(GivenUp):
        do(merges, table, asked, gives_up)
    assert stored(table, node) == set()

    def full(self: Storage, uri: str, *_: object) -> None:
        Path(places.local_path(uri) or uri).write_bytes(b"PAR1")
        raise StorageUnavailable(f"{uri}: {errno.errorcode[errno.ENOSPC]}")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write_bytes", full)
        with pytest.raises(StorageUnavailable, match="ENOSPC"):
            do(merges, table, asked)
    assert stored(table, node) == set()
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "sync_data", lambda *_: full(STORAGE, str(Path(table.address(node).uri) / "x")))
        with pytest.raises(StorageUnavailable, match="ENOSPC"):
            do(merges, table, asked)
    assert stored(table, node) == set()
    assert len(do(merges, table, asked).files) == 1
    assert merges._taken == 0
    assert read_versions(table, "ALL") == EXPECTED, "nothing of it is seen"


def test_a_merge_that_takes_more_memory_than_an_agent_has_for_it_is_done_here(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = NearDisks(table)
    workers.merging = Merging(STORAGE.settings, most_bytes=100)
    assert compact_near(table, workers).complete
    assert (workers.merged, workers.by_itself) == ([], 2)
    assert_compacted(table)
    for part in range(2):
        write_versions(table, {row: f"note {row}" for row in range(part, 40, 2)})
    workers.merging = Merging(STORAGE.settings)
    monkeypatch.setattr(merging.pa, "total_allocated_bytes", lambda: 1 << 40)
    assert compact_near(table, workers).complete
    assert (workers.merged, workers.by_itself) == ([], 4)
    assert_compacted(table)


def test_a_range_without_a_replica_that_has_all_of_it_whole_is_merged_here(table: SmallCluster) -> None:
    files = sorted(live(table, "A").values(), key=lambda file: file.path)
    tablet = [file for file in files if file.window == files[0].window]
    for node, file in zip("ABC", tablet, strict=True):
        path = Path(table.address(node).uri, file.path)
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
    workers = NearDisks(table)
    items: list[RangeToMerge] = []
    one = workers._one
    workers._one = lambda task, item: (items.append(item), task(item) if item.home is None else one(task, item))[1]  # type: ignore[method-assign]
    assert compact_near(table, workers, repairing=False).complete
    assert sorted(item.home is None for item in items) == [False, True]
    assert _merge_task(table.metadata, 0, next(item for item in items if item.home is None)) is None
    assert_compacted(table)


def test_orders_are_bounded_by_their_tasks_and_their_bytes(table: SmallCluster) -> None:
    asked = to_merge(table, [])
    task = _merge_task(table.metadata, 0, asked)
    assert task is not None
    assert task.merge is not None

    def of_sources(number: int, count: int) -> Task:
        source = MergeSource("_tablet=0-f/" + "c" * 60 + ".parquet", 0, 1, True)
        more = msgspec.structs.replace(task.merge, sources=(source,) * count)  # type: ignore[type-var]
        return msgspec.structs.replace(task, number=number, merge=more)

    few = [of_sources(number, 1) for number in range(MOST_TASKS + 1)]
    assert [len(one) for one in _orders(few)] == [MOST_TASKS, 1]
    many = [of_sources(number, 2000) for number in range(9)]
    orders = list(_orders(many))
    assert [one for some in orders for one in some] == many
    assert len(orders) > 1
    assert all(sum(len(msgspec.json.encode(one)) for one in some) <= MOST_BYTES for some in orders)
    source = asked.merge.sources[0]
    huge = msgspec.structs.replace(asked.merge, sources=(source,) * 20_000)
    plan = msgspec.structs.replace(asked.plan, merges=(huge,))
    assert _merge_task(table.metadata, 0, RangeToMerge(plan)) is None


def test_what_is_said_of_a_merge_is_json(table: SmallCluster) -> None:
    merged = RangeMerged((MergedFile(0, next(iter(live(table, "A").values())), {3: "full"}),), (1,))
    assert msgspec.json.decode(msgspec.json.encode(merged), type=RangeMerged) == merged
