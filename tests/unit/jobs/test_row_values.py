"""Values that Spark and Arrow have and Python has no word for: rows with them are found, filtered, merged and shown."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from epochlake.jobs.replicas.row_values import StoredKeys, shown_rows
from epochlake.jobs.replicas.scanning import Asked
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper

FLIGHTS = "air.flights"
TYPES = {
    "date": (pa.date32(), pa.int32(), [-(2**31), 2**31 - 1, 2_932_897, 0]),
    "timestamp": (pa.timestamp("us", "UTC"), pa.int64(), [-(2**63), 2**63 - 1, 253_402_300_800_000_000, 0]),
    "timestamp_ntz": (pa.timestamp("us"), pa.int64(), [-(2**63), 2**63 - 1, 253_402_300_800_000_000, 0]),
    "string": (pa.string(), pa.binary(), [b"\xff\xfe", b"a\xc3", b"", b"fine"]),
}


@pytest.fixture(params=sorted(TYPES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    columns = [("id", kind, False), ("again", kind, True), ("n", "int", True)]
    settings = Configuration(pipeline=PipelineSettings(attempts=1))
    small = placed(tmp_path, FOUR, {0: "ABC"}, columns=columns, configuration=settings)
    with small.cluster:
        yield small


def values(kind: str) -> pa.Array:
    type_, stored, given = TYPES[kind]
    numbers = pa.array(given, stored)
    return numbers.view(type_) if kind == "string" else numbers.cast(type_)


def rows(kind: str, n: int) -> pa.Table:
    return pa.table({"id": values(kind), "again": values(kind), "n": pa.array([n] * 4, pa.int32())})


def test_rows_with_such_values_are_read_in_every_way(cluster: SmallCluster, kind: str) -> None:
    given = rows(kind, 1)
    lake = cluster.cluster
    lake.write(FLIGHTS, rows(kind, 0))
    lake.write(FLIGHTS, given)
    assert lake.count(FLIGHTS) == 4
    for value in values(kind):
        for name in ("id", "again"):
            found = lake.scan(FLIGHTS, where=pc.field(name) == value).read_all()
            assert found.equals(given.filter(pc.field(name) == value))
            assert lake.count(FLIGHTS, where=pc.field(name) >= value) == given.filter(pc.field(name) >= value).num_rows
        key = pa.table({"id": pa.array([value], value.type)})
        assert lake.scan(FLIGHTS, keys=key).read_all().equals(given.filter(pc.field("id") == value))
    assert lake.count(FLIGHTS, keys=given.select(["id"])) == 4


def test_they_are_merged_overwritten_and_deleted(cluster: SmallCluster, kind: str) -> None:
    lake = cluster.cluster
    lake.write(FLIGHTS, rows(kind, 0))
    merged = lake.merge(FLIGHTS, rows(kind, 7)).when_matched_update({"n": "source.n"}).execute()
    assert (merged.updated, lake.count(FLIGHTS, where=pc.field("n") == 7)) == (4, 4)
    overwritten = lake.overwrite(FLIGHTS, rows(kind, 8).slice(0, 3), where=pc.field("n") >= 7)
    assert (overwritten.updated, overwritten.deleted, lake.count(FLIGHTS)) == (3, 1, 3)
    lake.delete(FLIGHTS, rows(kind, 0).select(["id"]).slice(0, 1))
    assert lake.count(FLIGHTS) == 2


def test_a_key_that_is_given_twice_is_refused_and_shown(cluster: SmallCluster, kind: str) -> None:
    twice = pa.concat_tables([rows(kind, 0).slice(0, 1)] * 2)
    with pytest.raises(InvalidRequest, match="have the same primary key"):
        cluster.cluster.write(FLIGHTS, twice)
    with pytest.raises(InvalidRequest, match="have the key"):
        cluster.cluster.merge(FLIGHTS, twice).when_matched_update_all().execute()


def test_a_row_that_is_no_dict_is_refused_with_what_to_do(cluster: SmallCluster, kind: str) -> None:
    lake = cluster.cluster
    # Only the column beside the key has what Python has no word for, so that a key of Python finds the row.
    given = rows(kind, 0).slice(3).set_column(1, "again", values(kind).slice(0, 1))
    lake.write(FLIGHTS, given)
    with pytest.raises(InvalidRequest, match="no word for") as refused:
        lake.get(FLIGHTS, given["id"][0].as_py())
    assert "scan(" in refused.value.hint


def test_people_are_shown_a_text(kind: str) -> None:
    shown = shown_rows(rows(kind, 5))
    assert [row["n"] for row in shown] == [5] * 4
    assert all(isinstance(row["id"], str) for row in shown[:2])
    assert shown[3]["id"] == values(kind)[3].as_py()
    inside = pa.table({"many": pa.ListArray.from_arrays([0, 4], values(kind))})
    assert isinstance(shown_rows(inside)[0]["many"], str)


def test_keys_of_an_earlier_version_are_refused_by_a_worker_and_those_of_this_one_arrive() -> None:
    """An earlier version sends keys as values of Python: they would equal nothing."""
    schema = pa.schema([("day", pa.date32())])
    sent = Asked(schema, ("day",), keys=StoredKeys([(1,)]))
    [key] = pickle.loads(pickle.dumps(sent)).keys
    assert key == (1,)
    with pytest.raises(InvalidRequest, match="earlier version"):
        Asked(schema, ("day",), keys=frozenset([(date(1970, 1, 2),)]))  # type: ignore[arg-type]
