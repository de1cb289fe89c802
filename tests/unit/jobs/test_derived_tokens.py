"""Tokens that files leave out: readers have all of them, footers say what they said, other tables keep theirs."""

from __future__ import annotations

import datetime
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas import cutting, row_groups
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.derived_tokens import key_noted, with_tokens, without_tokens
from epochlake.jobs.replicas.files import MERGED, DataFile, new_file_id, path_of
from epochlake.jobs.replicas.intervals import FilePart
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.run_files import rows_of_file
from epochlake.jobs.replicas.sealing import require_intact, sealed_writer
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.metastore import metastore
from epochlake.metastore.metadata.features import DERIVED_TOKENS, SUPPORTED
from epochlake.placement.column_hashing import hashes_of
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, TOKEN

from tests.support.clusters import grow, without_zookeeper
from tests.support.files import stored_rows
from tests.support.golden import FORMATS
from tests.support.replicas import make_replica
from tests.support.storages import STORAGE

TABLE = "air.flights"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 16)
    with grow(tmp_path) as grown:
        yield grown


def create(cluster: Cluster, key: tuple[str, ...] = ("id",)) -> None:
    columns = [("id", "bigint", False), ("code", "string", False), ("note", "string", True)]
    administration.create_table(cluster, TABLE, columns, list(key), append_only=False, tablets=2)


def write(cluster: Cluster, ids: range, note: str) -> None:
    cluster.write(TABLE, [{"id": one, "code": f"c{one}", "note": note} for one in ids], consistency="ALL")


def compacted(cluster: Cluster, directory: Path) -> list[Path]:
    """Compact all of the table; the files that this has made."""
    assert compact(cluster, TABLE, policy=EVERYTHING).complete
    return sorted(path for path in directory.rglob("*.parquet") if path.name.startswith(MERGED))


def notes(cluster: Cluster) -> dict[int, str]:
    rows = cluster.scan(TABLE).read_all().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["note"] for row in rows}


def group_tokens(path: Path) -> list[list[int | None]]:
    with pq.ParquetFile(path) as source:
        return [source.read_row_group(group, [TOKEN])[TOKEN].to_pylist() for group in range(source.num_row_groups)]


def test_compaction_leaves_out_all_tokens_of_a_row_group_but_its_first_and_its_last(
    cluster: Cluster, tmp_path: Path
) -> None:
    create(cluster)
    write(cluster, range(200), "old")
    write(cluster, range(50, 90), "new")
    made = compacted(cluster, tmp_path)
    assert made
    for path in made:
        every = stored_rows(path)
        assert every[TOKEN].to_pylist() == hashes_of([every["id"].combine_chunks()], every.num_rows).tolist()
        start = 0
        footer = pq.read_metadata(path)
        for group, tokens in enumerate(group_tokens(path)):
            ends = [every[TOKEN][start].as_py(), every[TOKEN][start + len(tokens) - 1].as_py()]
            assert tokens == [ends[0], *[None] * (len(tokens) - 2), ends[1]]
            said = footer.row_group(group).column(footer.schema.names.index(TOKEN)).statistics
            assert [said.min, said.max] == ends
            start += len(tokens)
    expected = {one: "new" if 50 <= one < 90 else "old" for one in range(200)}
    assert notes(cluster) == expected
    write(cluster, range(60, 70), "newest")
    cluster.delete(TABLE, [{"id": 61}])
    expected = {**expected, **dict.fromkeys(range(60, 70), "newest")}
    del expected[61]
    assert notes(cluster) == expected
    assert cluster.count(TABLE) == 199
    assert (cluster.get(TABLE, 60) or {})["note"] == "newest"
    assert cluster.get(TABLE, 61) is None
    # What has none of them is merged again, and after the key has another name.
    administration.alter_table(cluster, TABLE, rename={"id": "number"})
    write_renamed = [{"number": 7, "code": "c7", "note": "renamed"}]
    cluster.write(TABLE, write_renamed, consistency="ALL")
    assert compact(cluster, TABLE, policy=EVERYTHING).complete
    rows = {row["number"]: row["note"] for row in cluster.scan(TABLE).read_all().to_pylist()}
    assert rows == {**expected, 7: "renamed"}


@pytest.mark.parametrize("key", [("code",), ("id", "code")])
def test_a_table_whose_keys_may_share_a_token_keeps_all_tokens(
    cluster: Cluster, tmp_path: Path, key: tuple[str, ...]
) -> None:
    create(cluster, key)
    write(cluster, range(100), "old")
    write(cluster, range(100), "new")
    made = compacted(cluster, tmp_path)
    assert made
    assert not any(None in tokens for path in made for tokens in group_tokens(path))


def test_before_every_member_reads_them_no_file_leaves_tokens_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_zookeeper(monkeypatch)
    others = tuple(name for name in SUPPORTED if name != DERIVED_TOKENS)
    monkeypatch.setattr(metastore, "SUPPORTED", others)  # as of a cluster that an earlier version has begun
    with grow(tmp_path) as cluster:
        create(cluster)
        write(cluster, range(100), "old")
        write(cluster, range(100), "new")
        made = compacted(cluster, tmp_path)
        assert made
        assert not any(None in tokens for path in made for tokens in group_tokens(path))


def keyed_rows(keys: pa.Array) -> pa.Table:
    """Rows with these keys, in token order."""
    tokens = hashes_of([keys], len(keys))
    order = pa.array(np.argsort(tokens, kind="stable"))
    rows = pa.table({"key": keys, TOKEN: pa.array(tokens)}).take(order)
    rows = rows.append_column("_written_at", pa.array(range(len(keys)), pa.int64()))
    return rows.append_column("_deleted", pa.array([False] * len(keys)))


KEYS = {
    "tinyint": pa.array(range(-100, 100), pa.int8()),
    "smallint": pa.array(range(-100, 100), pa.int16()),
    "int": pa.array(range(-100, 100), pa.int32()),
    "bigint": pa.array(range(-100, 100), pa.int64()),
    "boolean": pa.array([True, False] * 2, pa.bool_()),
    "date": pa.array([datetime.date(2026, 1, 1) + datetime.timedelta(n) for n in range(200)], pa.date32()),
    "timestamp": pa.array(range(-100, 100), pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.array(range(-100, 100), pa.timestamp("us")),
}


def stored(address: ReplicaAddress, rows: pa.Table, size: int) -> DataFile:
    """A sealed file without tokens, in row groups of this size."""
    file_id = new_file_id()
    path = path_of("0-0", file_id)
    uri = f"{address.uri}/{path}"
    STORAGE.create_directory(uri.rpartition("/")[0])
    with STORAGE.new_file(uri) as sink, sealed_writer(sink, rows.schema, file_id, "key") as writer:
        for start in range(0, rows.num_rows, size):
            writer.write(rows.slice(start, size))
    tokens = rows[TOKEN].to_pylist()
    bytes_ = STORAGE.size_of(uri) or 0
    return DataFile(file_id, "0-0", path, bytes_, rows.num_rows, tokens[0], tokens[-1], 0, rows.num_rows - 1, False)


@pytest.mark.parametrize("type_", KEYS)
def test_every_kind_of_key_says_its_tokens_when_it_comes_from_a_file(tmp_path: Path, type_: str) -> None:
    replica = make_replica(tmp_path, 1)
    rows = keyed_rows(KEYS[type_])
    file = stored(replica, rows, 60)
    assert any(None in tokens for tokens in group_tokens(Path(replica.uri) / file.path))
    parts = rows_of_file(STORAGE, f"{replica.uri}/{file.path}", None, [TOKEN], lambda kind: kind)
    found = pa.concat_tables([part for part, _ in parts])
    assert found.column_names == [TOKEN]
    assert found[TOKEN].to_pylist() == rows[TOKEN].to_pylist()


def test_a_file_of_the_first_version_that_left_tokens_out_is_read_and_cut(tmp_path: Path) -> None:
    kept = FORMATS / "jobs" / "derived-tokens"
    expected = json.loads((kept / "expected.json").read_text(encoding="utf-8"))
    file = msgspec.convert(expected["file"], DataFile)
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    path = Path(source.uri) / file.path
    path.parent.mkdir(exist_ok=True)
    shutil.copy(kept / f"{file.file_id}.parquet", path)
    require_intact(STORAGE, file, str(path))
    assert [len(tokens) - tokens.count(None) for tokens in group_tokens(path)] == [2, 2]
    parts = rows_of_file(STORAGE, str(path), None, [TOKEN, "key"], lambda kind: kind)
    found = pa.concat_tables([part for part, _ in parts]).to_pylist()
    assert found == [{"key": row["key"], TOKEN: row[TOKEN]} for row in expected["rows"]]
    piece = cut(source, FilePart(file, file.window[0], expected["rows"][6][TOKEN]), target)
    assert stored_rows(Path(target.uri) / piece.path).to_pylist() == expected["rows"][:7]


@pytest.mark.parametrize("copying", [True, False], ids=["copied", "decoded"])
def test_pieces_have_the_rows_of_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copying: bool, seed: int
) -> None:
    chance = random.Random(seed)
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    rows = keyed_rows(pa.array(chance.sample(range(10_000), 300), pa.int64()))
    if not copying:
        monkeypatch.setattr(cutting, "_groups_to_copy", lambda *asked: None)
    file = stored(source, rows, 20)
    for _ in range(8):
        low, high = sorted(chance.randrange(MIN_TOKEN, MAX_TOKEN) for _ in range(2))
        piece = cut(source, FilePart(file, low, high), target)
        expected = rows.filter((rows[TOKEN].to_numpy() >= low) & (rows[TOKEN].to_numpy() <= high))
        path = Path(target.uri) / piece.path
        assert stored_rows(path).equals(expected), f"seed {seed}"
        assert require_intact(STORAGE, piece, f"{target.uri}/{piece.path}")
        if expected.num_rows:
            assert piece.extent == (expected[TOKEN][0].as_py(), expected[TOKEN][-1].as_py())
            # A piece of a piece is as good as one of the file.
            middle = expected[TOKEN][expected.num_rows // 2].as_py()
            again = cut(target, FilePart(piece, low, middle), source)
            assert stored_rows(Path(source.uri) / again.path).equals(
                expected.filter(expected[TOKEN].to_numpy() <= middle)
            )


def test_a_footer_that_says_nothing_of_its_key_has_all_tokens(tmp_path: Path) -> None:
    replica = make_replica(tmp_path, 1)
    file = stored(replica, keyed_rows(KEYS["bigint"]), 60)
    assert key_noted(pq.read_metadata(Path(replica.uri) / file.path).metadata) == "key"
    assert key_noted(None) is None
    assert key_noted({b"other": b"key"}) is None


def test_tokens_that_are_not_the_hashes_of_their_keys_or_not_in_order_stay() -> None:
    rows = keyed_rows(KEYS["bigint"])
    thin = without_tokens(rows, "key")
    assert thin[TOKEN].null_count == rows.num_rows - 2
    assert with_tokens(thin, "key").equals(rows)
    wrong = rows[TOKEN].to_pylist()
    wrong[70] += 1
    other = rows.set_column(1, TOKEN, pa.array(wrong))
    assert without_tokens(other, "key").equals(other)
    backwards = rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))
    assert without_tokens(backwards, "key").equals(backwards)
    assert without_tokens(rows.slice(0, 2), "key").equals(rows.slice(0, 2))
    assert without_tokens(rows.slice(0, 0), "key").num_rows == 0
