"""Cutting files: the same rows whoever cuts, whole or not at all, and in one commit with what they replace."""

from __future__ import annotations

import datetime
import decimal
import os
import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import commits, cutting
from epochlake.jobs.replicas.commits import commit_files, drop_ranges, pre_split, relabel, straddling
from epochlake.jobs.replicas.copying import PartCopy, copy_data_file
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import DataFile, new_file_id, path_of
from epochlake.jobs.replicas.intervals import FilePart, all_of, select
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, FencedOff, Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot, open_snapshot
from epochlake.jobs.upkeep import vacuum as vacuuming
from epochlake.jobs.upkeep.vacuum import Vacuumed, vacuum
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.places import TEMPORARY
from epochlake.placement.tokens import TABLET, range_label, tokens_of_label

from tests.support.failures import mounted
from tests.support.replicas import flip_in_a_page, make_replica

LABEL = range_label(-1000, 1000)


@pytest.fixture
def address(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1, fence=5)


def stored(address: ReplicaAddress, *tokens: int, group: int = 4, label: str = LABEL) -> DataFile:
    """A staged file with one row for each token, in row groups of four; odd tokens are tombstones."""
    nested = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.map_(pa.string(), pa.string()))])
    columns = {
        "_token": pa.array(tokens, pa.int64()),
        "id": pa.array(tokens, pa.int64()),
        "note": [f"note {token}" if token % 3 else None for token in tokens],
        "nested": pa.array([{"a": [token], "b": [("k", str(token))]} for token in tokens], nested),
        "day": [datetime.date(2026, 1, 1) + datetime.timedelta(token % 300) for token in tokens],
        "at": pa.array([token * 1000 for token in tokens], pa.timestamp("us", "UTC")),
        "price": pa.array([decimal.Decimal(token) / 4 for token in tokens], pa.decimal128(12, 2)),
        "_written_at": pa.array([10_000 + token for token in tokens], pa.int64()),
        "_deleted": [token % 2 == 1 for token in tokens],
    }
    file_id = new_file_id()
    path = Path(address.uri) / path_of(label, file_id)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group, compression="zstd", store_schema=False)
    times = [10_000 + token for token in tokens]
    return DataFile(
        file_id,
        label,
        path_of(label, file_id),
        path.stat().st_size,
        len(tokens),
        tokens[0],
        tokens[-1],
        min(times),
        max(times),
        any(token % 2 for token in tokens),
    )


def load(address: ReplicaAddress, *files: DataFile) -> None:
    outcome = commit_files(address, files, epoch=5, app_id=f"load-{files[0].file_id}", app_version=1)
    assert isinstance(outcome, Acknowledged), outcome


def rows_in(address: ReplicaAddress, file: DataFile) -> pa.Table:
    return pq.read_table(Path(address.uri) / file.path, partitioning=None)


def live_tokens(address: ReplicaAddress) -> list[int]:
    """The tokens of all rows that a reader of the replica sees, as often as it sees them."""
    parts = select(open_snapshot(address).all_files.values(), *tokens_of_label("0-0"))
    tokens = [
        t for part in parts for t in rows_in(address, part.file)["_token"].to_pylist() if part.low <= t <= part.high
    ]
    return sorted(tokens)


def test_a_piece_has_the_rows_of_its_window_and_says_so(address: ReplicaAddress) -> None:
    file = stored(address, *range(-20, 20))
    piece = cut(address, FilePart(file, -7, 30), address)
    expected = rows_in(address, file).filter(pc.field("_token") >= -7)
    assert rows_in(address, piece).equals(expected)
    assert piece == msgspec.structs.replace(
        file,
        file_id=f"{file.file_id}.{range_label(-7, 30)}",
        path=f"{file.path.rpartition('/')[0]}/{file.file_id}.{range_label(-7, 30)}.parquet",
        size=(Path(address.uri) / piece.path).stat().st_size,
        rows=27,
        min_token=-7,
        min_written_at=10_000 - 7,
    )
    assert (piece.window, piece.origin, piece.extent) == ((-7, 30), file.file_id, (-7, 19))


def test_the_same_rows_come_out_whoever_cuts(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    first, second = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    tokens = sorted(chance.sample(range(-1000, 1000), 60))
    file = stored(first, *tokens, group=chance.randint(1, 30))
    for _ in range(15):
        ends = sorted(chance.sample(range(-1000, 1000), 4))
        outer, inner = (ends[0], ends[3]), (ends[1], ends[2])
        direct = cut(first, FilePart(file, *inner), first)
        wide = cut(first, FilePart(file, *outer), second)
        by_way = cut(second, FilePart(wide, *inner), second)
        assert (by_way.file_id, by_way.window, by_way.path) == (direct.file_id, inner, direct.path)
        assert rows_in(second, by_way).equals(rows_in(first, direct))
        assert rows_in(first, direct)["_token"].to_pylist() == [t for t in tokens if inner[0] <= t <= inner[1]]
        assert msgspec.structs.replace(by_way, size=0) == msgspec.structs.replace(direct, size=0)


def test_a_piece_without_rows_is_a_file_without_rows(address: ReplicaAddress) -> None:
    file = stored(address, -5, 5)
    piece = cut(address, FilePart(file, -4, 4), address)
    assert (piece.rows, piece.has_tombstones, piece.max_written_at, piece.window) == (0, False, 0, (-4, 4))
    assert rows_in(address, piece).schema == rows_in(address, file).schema
    load(address, piece)
    assert open_snapshot(address).all_files == {piece.file_id: piece}
    load(address, file)
    assert live_tokens(address) == [-5, 5]


def test_only_the_row_groups_that_can_have_rows_are_read(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[int]] = []
    iterate = pq.ParquetFile.iter_batches

    def noted(self: pq.ParquetFile, size: int, row_groups: list[int], **options: object) -> object:
        read.append(row_groups)
        return iterate(self, size, row_groups=row_groups, **options)

    file = stored(address, *range(40))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    cut(address, FilePart(file, 11, 16), address)
    cut(address, FilePart(file, 60, 70), address)
    assert read == [[2], [3], [4]]


def test_a_piece_that_is_there_is_not_cut_again_and_a_torn_one_is(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stored(address, *range(40))
    piece = cut(address, FilePart(file, 0, 19), address)
    path = Path(address.uri) / piece.path
    whole, written = path.read_bytes(), cutting._write_piece
    monkeypatch.setattr(cutting, "_write_piece", None)
    os.utime(path, (0, 0))
    assert cut(address, FilePart(file, 0, 19), address) == piece
    assert path.stat().st_mtime > 0, "it is about to be committed: no clean-up may take it for old"
    monkeypatch.setattr(cutting, "_write_piece", written)
    for torn in (whole[:-1], whole[: len(whole) // 2], b""):
        path.write_bytes(torn)
        assert cut(address, FilePart(file, 0, 19), address) == piece
        assert path.read_bytes() == whole


def test_a_piece_that_an_earlier_try_has_brought_and_that_has_rotted_is_brought_anew(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    part = FilePart(stored(source, *range(40)), 0, 19)
    piece = cut(source, part, target)
    path = Path(target.uri) / piece.path
    whole = path.read_bytes()
    flip_in_a_page(path)
    assert path.read_bytes() != whole
    assert cut(source, part, target) == piece
    assert path.read_bytes() == whole


def test_a_cut_that_breaks_off_leaves_no_piece(address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stored(address, *range(40))

    def break_off(*arguments: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(cutting, "in_row_groups", break_off)
    with pytest.raises(KeyboardInterrupt):
        cut(address, FilePart(file, 0, 19), address)
    assert [path.name for path in (Path(address.uri) / file.path).parent.iterdir()] == [f"{file.file_id}.parquet"]


def test_what_cannot_be_cut_is_said_by_name(tmp_path: Path, address: ReplicaAddress) -> None:
    file = stored(address, *range(4000), label="0-0")
    with pytest.raises(StorageUnavailable, match="has 4000 rows of 7, so another file lies under its name"):
        cut(address, FilePart(msgspec.structs.replace(file, rows=7), 0, 9), address)
    path = Path(address.uri) / file.path
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\0" * 2000 + data[2004:])
    with pytest.raises(StorageUnavailable, match=f"cannot cut .*{file.file_id}"):
        cut(address, FilePart(file, 0, 9), address)
    path.write_bytes(data)
    with mounted(tmp_path / "v2", "512k"):
        full = make_replica(tmp_path, 2)
        (Path(full.uri) / "filler").write_bytes(b"0" * (490 << 10))
        with pytest.raises(StorageUnavailable, match="disk is full"):
            cut(address, FilePart(file, 0, 3998), full)
        assert list((Path(full.uri) / file.path).parent.iterdir()) == []
    path.unlink()
    with pytest.raises(StorageUnavailable, match="not there"):
        cut(address, FilePart(file, 0, 8), address)


def test_copying_brings_the_file_when_it_is_wanted_whole_and_else_the_piece(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = stored(source, *range(10, 30))
    assert copy_data_file(PartCopy(FilePart(file, 0, 500), source, target)) == file
    copy = PartCopy(FilePart(file, 0, 19), source, target)
    piece = copy_data_file(copy)
    assert (piece.file_id, piece.rows) == (copy.key, 10)
    assert copy.size == file.size // 2


def test_dropping_ranges_leaves_exactly_the_other_rows(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    address, expected = make_replica(tmp_path, 1, fence=5), []
    files = [stored(address, *sorted(chance.sample(range(-1000, 1000), 30))) for _ in range(6)]
    load(address, *files)
    expected = live_tokens(address)
    for epoch in range(6, 12):
        low = chance.randint(-1100, 1000)
        ranges = [(low, low + chance.randint(0, 300)), (low + 100, low + 350)]
        outcome = drop_ranges(address, ranges, epoch)
        expected = [token for token in expected if not any(first <= token <= last for first, last in ranges)]
        assert isinstance(outcome, Acknowledged | AlreadyApplied)
        assert live_tokens(address) == expected
        assert isinstance(drop_ranges(address, ranges, epoch), AlreadyApplied)
        assert open_snapshot(address).fence == epoch
    assert {file.origin for file in open_snapshot(address).all_files.values()} <= {file.file_id for file in files}


def test_what_stays_of_a_piece_still_says_where_it_has_no_row(address: ReplicaAddress) -> None:
    """Others may have the file that it was cut from, and would take the gap for missing rows."""
    file = stored(address, 10, 40, 90)
    load(address, cut(address, FilePart(file, 0, 50), address))
    assert isinstance(drop_ranges(address, [(30, 60)], 6), Acknowledged)
    drop_ranges(address, [(5, 15)], 7)
    [low, high] = sorted(open_snapshot(address).all_files.values(), key=lambda held: held.window)
    assert [(held.window, held.rows) for held in (low, high)] == [((0, 4), 0), ((16, 29), 0)]


def test_dropping_is_behind_the_fence_or_says_so(address: ReplicaAddress, tmp_path: Path) -> None:
    file = stored(address, 1, 2, 3)
    load(address, file)
    raise_fence(address, 9)
    assert drop_ranges(address, [(2, 2)], 8) == FencedOff(9)
    assert pre_split(address, [2], 8) == FencedOff(9)
    assert relabel(address, lambda held: "0-0", 8) == FencedOff(9)
    assert open_snapshot(address).all_files == {file.file_id: file}
    (Path(address.uri) / file.path).unlink()
    assert isinstance(drop_ranges(address, [(2, 2)], 9), Unreachable)
    assert isinstance(pre_split(address, [2], 9), Unreachable)


def test_a_pre_split_leaves_no_file_on_both_sides_and_every_row(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    address = make_replica(tmp_path, 1, fence=5)
    load(address, *(stored(address, *sorted(chance.sample(range(-1000, 1000), 20))) for _ in range(5)))
    before, boundaries = live_tokens(address), sorted(chance.sample(range(-1000, 1000), 3))
    version = open_snapshot(address).version
    assert pre_split(address, boundaries, 5) == 0
    snapshot = open_snapshot(address)
    assert snapshot.version == version + 1, "parents go and pieces come in one commit"
    assert straddling(snapshot, boundaries) == []
    assert live_tokens(address) == before
    assert pre_split(address, boundaries, 5) == 0
    assert open_snapshot(address).version == version + 1


def test_a_boundary_is_the_last_token_of_its_lower_side(address: ReplicaAddress) -> None:
    load(address, stored(address, 1, 2), stored(address, 2, 3), stored(address, 3, 4), stored(address, 2))
    assert [file.extent for file in straddling(open_snapshot(address), [2])] == [(2, 3)]
    pre_split(address, [2], 5)
    assert sorted(file.extent for file in open_snapshot(address).all_files.values()) == [
        (1, 2),
        (2, 2),
        (2, 2),
        (3, 3),
        (3, 4),
    ]


def test_relabelling_moves_no_byte_and_any_delta_reader_sees_it(address: ReplicaAddress) -> None:
    from deltalake import DeltaTable

    low, high, both = stored(address, 1, 2), stored(address, 600, 700), stored(address, 5, 650)
    load(address, low, high, both)
    pre_split(address, [499], 5)
    listed = {path: path.stat().st_mtime_ns for path in Path(address.uri).rglob("*.parquet")}
    outcome = relabel(address, lambda file: "1-0" if file.max_token <= 499 else "1-1", 5)
    assert isinstance(outcome, Acknowledged)
    assert {path: path.stat().st_mtime_ns for path in Path(address.uri).rglob("*.parquet")} == listed
    snapshot = open_snapshot(address)
    assert sorted((file.label, file.extent) for file in snapshot.all_files.values()) == [
        ("1-0", (1, 2)),
        ("1-0", (5, 5)),
        ("1-1", (600, 700)),
        ("1-1", (650, 650)),
    ]
    assert snapshot.all_files[low.file_id] == msgspec.structs.replace(low, label="1-0"), "its statistics are kept"
    rows = DeltaTable(address.uri).to_pyarrow_table(filters=[(TABLET, "=", "1-1")], columns=["id"])
    assert sorted(rows["id"].to_pylist()) == [600, 650, 700]
    assert isinstance(relabel(address, lambda file: file.label, 5), AlreadyApplied)


def overtaken(monkeypatch: pytest.MonkeyPatch, by: object) -> None:
    """The next commit is overtaken between its look and its end."""
    looked = open_snapshot

    def look(where: ReplicaAddress) -> ReplicaSnapshot:
        snapshot = looked(where)
        monkeypatch.setattr(commits, "open_snapshot", looked)
        by()  # type: ignore[operator]
        return snapshot

    monkeypatch.setattr(commits, "open_snapshot", look)


def test_what_was_dropped_meanwhile_is_not_brought_back_by_those_that_arrange_files(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked at the same files, at the same epoch; the drop was faster."""
    arrangements = [
        lambda: pre_split(address, [20], 5),
        lambda: relabel(address, lambda file: f"{file.label[:-1]}f", 5),
        lambda: drop_ranges(address, [(15, 16)], 5),
    ]
    for arrange in arrangements:
        load(address, stored(address, *range(10, 30)), stored(address, 11, 12, 13))
        overtaken(monkeypatch, lambda: drop_ranges(address, [(10, 14)], 5))
        outcome = arrange()
        assert not isinstance(outcome, Unreachable)
        assert not set(live_tokens(address)) & set(range(10, 15))
        assert set(live_tokens(address)) >= set(range(17, 30))


def test_appends_do_not_stop_a_drop_and_a_drop_does_not_stop_appends(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(address, stored(address, *range(10)))
    other = stored(address, 100, 101)
    overtaken(monkeypatch, lambda: load(address, other))
    assert isinstance(drop_ranges(address, [(0, 4)], 5), Acknowledged)
    overtaken(monkeypatch, lambda: drop_ranges(address, [(5, 6)], 5))
    load(address, stored(address, 200))
    assert live_tokens(address) == [7, 8, 9, 100, 101, 200]


def test_what_is_live_in_pieces_or_in_a_wider_file_is_not_added_again(address: ReplicaAddress) -> None:
    file = stored(address, *range(10))
    low, high = cut(address, FilePart(file, 0, 4), address), cut(address, FilePart(file, 5, 12), address)
    load(address, low)
    outcome = commit_files(address, [low, file], epoch=5, app_id=f"load-{low.file_id}", app_version=1)
    assert outcome == AlreadyApplied(1, frozenset({file.file_id})), "a half of it is there only"
    load(address, high)
    assert commit_files(address, [file], epoch=5, app_id="again", app_version=1) == AlreadyApplied(2)
    whole = stored(address, *range(20, 30))
    load(address, whole)
    piece = cut(address, FilePart(whole, 22, 24), address)
    assert commit_files(address, [piece], epoch=5, app_id="again", app_version=1) == AlreadyApplied(3)
    assert live_tokens(address) == [*range(10), *range(20, 30)]


def test_vacuum_takes_the_parent_the_leftovers_of_cuts_and_no_live_piece(address: ReplicaAddress) -> None:
    file, dropped = stored(address, *range(10)), stored(address, 50, 51)
    load(address, file, dropped)
    pre_split(address, [4], 5)
    drop_ranges(address, [(50, 60)], 5)
    abandoned = cut(address, FilePart(file, 2, 3), address)
    leftover = Path(address.uri) / file.path
    leftover = leftover.with_name(f".{leftover.name}{TEMPORARY}0")
    leftover.write_bytes(b"torn")
    live = {held.path for held in open_snapshot(address).all_files.values()}
    for path in Path(address.uri).rglob("*.parquet*"):
        os.utime(path, (0, 0))
    assert vacuum(address, 10**15, clock_margin_ms=0).files == 4
    left = {str(path.relative_to(address.uri)) for path in Path(address.uri).glob(f"{TABLET}=*/*")}
    assert left == live
    assert abandoned.path not in left
    assert live_tokens(address) == list(range(10))


def test_a_piece_that_is_used_again_while_vacuum_looks_is_not_deleted(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut long ago and never committed; now it is, after vacuum had listed it as unused."""
    file = stored(address, *range(10))
    load(address, file)
    old = cut(address, FilePart(file, 5, 1000), address)
    os.utime(Path(address.uri) / old.path, (0, 0))
    listed = vacuuming.unused_files

    def listed_and_overtaken(*arguments: object, **options: object) -> object:
        found = listed(*arguments, **options)  # type: ignore[arg-type]
        drop_ranges(address, [(-1000, 4)], 5)
        return found

    monkeypatch.setattr(vacuuming, "unused_files", listed_and_overtaken)
    assert vacuum(address, 10**15, clock_margin_ms=0) == Vacuumed(0, 0, 1)
    assert live_tokens(address) == list(range(5, 10))


def test_within_finds_the_files_whose_window_meets_the_tokens(address: ReplicaAddress) -> None:
    file = stored(address, *range(10))
    pieces = [cut(address, FilePart(file, 0, 4), address), cut(address, FilePart(file, 5, 12), address)]
    load(address, *pieces)
    snapshot = open_snapshot(address)
    for (low, high), expected in {(0, 4): [0], (4, 5): [0, 1], (12, 99): [1], (13, 99): [], (-9, -1): []}.items():
        assert {held.file_id for held in snapshot.within(low, high)} == {pieces[n].file_id for n in expected}
    assert all_of(pieces[1]) == FilePart(pieces[1], 5, 12)
    assert open_snapshot(make_replica(Path(address.volume_uri).parent, 2)).within(0, 9) == []
