"""Rows read without Spark, over real Delta tables: all, some, one, and never others than a read shows."""

from __future__ import annotations

import datetime
import gc
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from epochlake.jobs.gate import arrow_reading, standing
from epochlake.jobs.gate.errors import ConsistencyNotReached, ReadDisturbed, RowsUnreadable
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas import sections
from epochlake.jobs.testing.rows import shown
from epochlake.metastore.announcing import stored_leases
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.replicas import flip_in_a_page
from tests.support.storages import STORAGE

ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1))
FLIGHTS = "air.flights"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with_tablets = placed(tmp_path, FOUR, dict.fromkeys(range(8), "ABC"), configuration=ONE_TRY)
    with with_tablets.cluster:
        yield with_tablets


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[SmallCluster]:
    columns = [
        ("carrier", "string", False),
        ("flight", "int", False),
        ("delay", "double", True),
        ("gate", "string", True),
    ]
    with_tablets = placed(
        tmp_path,
        FOUR,
        dict.fromkeys(range(4), "ABC"),
        columns=columns,
        primary_key=("carrier", "flight"),
        configuration=ONE_TRY,
    )
    with with_tablets.cluster:
        yield with_tablets


def numbered(count: int, note: str = "x", first: int = 0) -> pa.Table:
    return pa.table({"id": range(first, first + count), "note": [note] * count})


def by_key(rows: pa.RecordBatchReader) -> dict[int, str | None]:
    """The notes of a scan; no key twice."""
    found = rows.read_all().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["note"] for row in sorted(found, key=lambda row: row["id"])}


def leases(cluster: SmallCluster) -> int:
    return len(list(stored_leases(STORAGE, cluster.cluster.root.leases)))


def test_a_scan_shows_what_was_written_replaced_and_deleted(cluster: SmallCluster) -> None:
    assert by_key(cluster.cluster.scan(FLIGHTS)) == {}
    cluster.cluster.write(FLIGHTS, numbered(100, "old"))
    cluster.cluster.write(FLIGHTS, numbered(50, "new", first=25))
    cluster.cluster.delete(FLIGHTS, [{"id": number} for number in range(40, 90)])
    expected = {n: "old" if n < 25 else "new" for n in range(40)} | dict.fromkeys(range(90, 100), "old")
    for level in ("ONE", "QUORUM", "ALL"):
        assert by_key(cluster.cluster.scan(FLIGHTS, consistency=level)) == expected
    for number in range(-1, 101):
        row = cluster.cluster.get(FLIGHTS, number)
        assert row == ({"id": number, "note": expected[number]} if number in expected else None)


def test_what_a_filter_reads_is_found_by_few_tries_among_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(1_000)]
    columns = tuple(Column(name, "bigint", nullable=name != "c0") for name in names)
    table = Table("id-wide", "air", "wide", columns, ("c0",))
    tries = []
    applies = arrow_reading._applies
    monkeypatch.setattr(arrow_reading, "_applies", lambda *given: tries.append(given) or applies(*given))
    where = (pc.field("c7") > 3) | (pc.field("c991") < pc.field("c500"))
    assert arrow_reading.question(table, ["c3"], where).asked.needed == ("c7", "c500", "c991")
    assert len(tries) < 100


def test_lookups_scans_and_plain_merging_never_disagree(
    cluster: SmallCluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random writes and deletes, some of them while replicas are away, over tablets that move; slices are tiny."""
    monkeypatch.setattr(sections.tasks, "__defaults__", (16,))
    chance = random.Random(seed)
    for number in range(12):
        keys = chance.sample(range(40), chance.randrange(1, 30))
        with cluster.without(chance.choice(["", "A", "B", "C"])):
            if chance.random() < 0.3:
                cluster.cluster.delete(FLIGHTS, [{"id": key} for key in keys])
            else:
                cluster.cluster.write(FLIGHTS, [{"id": key, "note": f"{number}"} for key in keys])
        if number == 6:
            cluster.start("A", "X", tablet=3)
            cluster.until(None, tablet=3)
    with Gate(cluster.cluster, "reader") as gate:
        found = shown(STORAGE, gate.plan_read(cluster.table, "QUORUM"))
    expected = {key: note for key, [note] in sorted(found.items())}
    assert by_key(cluster.cluster.scan(FLIGHTS)) == expected, f"seed {seed}"
    some = chance.sample(range(-5, 45), 20)
    asked = {key: expected[key] for key in sorted(some) if key in expected}
    assert by_key(cluster.cluster.scan(FLIGHTS, keys=[{"id": key} for key in some])) == asked
    for key in some:
        assert cluster.cluster.get(FLIGHTS, key) == ({"id": key, "note": asked[key]} if key in asked else None)
    noted = {key: note for key, note in expected.items() if note is not None and note > "5"}
    assert by_key(cluster.cluster.scan(FLIGHTS, where=pc.field("note") > "5")) == noted


def test_columns_and_filters_are_those_that_were_asked_for(wide: SmallCluster) -> None:
    rows = [
        {"carrier": carrier, "flight": number, "delay": number / 2 if number else float("nan"), "gate": None}
        for carrier in ("AA", "UA")
        for number in range(50)
    ]
    wide.cluster.write(FLIGHTS, rows)
    wide.cluster.write(FLIGHTS, [{"carrier": "AA", "flight": 3, "delay": None, "gate": "B7"}])
    late = wide.cluster.scan(
        FLIGHTS, columns=["flight"], where=(pc.field("delay") > 20) & (pc.field("carrier") == "AA")
    )
    assert late.schema == pa.schema([("flight", pa.int32())])
    assert sorted(late.read_all()["flight"].to_pylist()) == list(range(41, 50))
    assert wide.cluster.scan(FLIGHTS, columns=iter(["gate", "flight"])).schema.names == ["gate", "flight"]
    with pytest.raises(InvalidRequest, match="columns are a int"):
        wide.cluster.scan(FLIGHTS, columns=7)  # type: ignore[arg-type]
    replaced = wide.cluster.scan(FLIGHTS, where=pc.field("gate").is_valid()).read_all().to_pylist()
    assert replaced == [{"carrier": "AA", "flight": 3, "delay": None, "gate": "B7"}]
    # The row that was replaced was delayed, and is not there any more, whatever the filter leaves out.
    assert wide.cluster.scan(FLIGHTS, where=pc.field("delay") == 1.5).read_all()["carrier"].to_pylist() == ["UA"]
    not_numbers = wide.cluster.scan(FLIGHTS, where=pc.is_nan(pc.field("delay")), columns=["carrier"])
    assert sorted(not_numbers.read_all()["carrier"].to_pylist()) == ["AA", "UA"]
    assert wide.cluster.scan(FLIGHTS, where=pc.field("flight") > 1_000).read_all().num_rows == 0
    found = wide.cluster.get(FLIGHTS, {"flight": 3, "carrier": "UA", "gate": "not a key"})
    assert found == {"carrier": "UA", "flight": 3, "delay": 1.5, "gate": None}
    two = wide.cluster.scan(
        FLIGHTS, keys=pd.DataFrame({"carrier": ["UA", "XX"], "flight": np.int32([7, 7])}), columns=["delay"]
    )
    assert two.read_all().to_pydict() == {"delay": [3.5]}


def test_what_does_not_fit_is_refused_with_the_reason(wide: SmallCluster) -> None:
    cluster = wide.cluster
    cases: list[tuple[dict[str, object], str]] = [
        ({"columns": ["tail"]}, "it has no column tail"),
        ({"columns": "gate"}, r"Give a list: \['gate'\]"),
        ({"columns": []}, "at least one"),
        ({"columns": ["gate", "gate"]}, "each column once"),
        ({"where": "delay > 3"}, "a filter of table air.flights is a str"),
        ({"where": pc.field("tail") > 3}, "cannot be applied"),
        ({"where": pc.field("gate") > 3}, "cannot be applied"),
        ({"where": pc.field("delay")}, "cannot be applied"),
        ({"keys": [{"carrier": "AA"}]}, r"column flight \(int\) is missing"),
        ({"keys": [{"carrier": "AA", "flight": None}]}, "has no flight"),
        ({"consistency": "MOST"}, "MOST"),
    ]
    for asked, message in cases:
        with pytest.raises(InvalidRequest) as refused:
            cluster.scan(FLIGHTS, **asked)  # type: ignore[arg-type]
        assert re.search(message, f"{refused.value} {refused.value.hint}"), str(refused.value)
    for key, message in ((5, "it is 5"), ({"carrier": "AA"}, "it has no flight")):
        with pytest.raises(InvalidRequest, match=message):
            cluster.get(FLIGHTS, key)
    with pytest.raises(Rejected, match="no table"):
        cluster.get("air.planes", 1)
    assert leases(wide) == 1


def test_a_filter_that_compares_what_cannot_be_compared_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    columns = [("id", "int", False), ("started", "timestamp", True)]
    timed = placed(tmp_path, FOUR, {0: "ABC"}, columns=columns, configuration=ONE_TRY)
    naive = datetime.datetime(2026, 1, 1)
    with timed.cluster:
        timed.cluster.write(FLIGHTS, [{"id": 1, "started": naive.replace(tzinfo=datetime.UTC)}])
        with pytest.raises(InvalidRequest, match="timezone"):
            timed.cluster.scan(FLIGHTS, where=pc.field("started") >= naive)
        same = pc.field("started") >= naive.replace(tzinfo=datetime.UTC)
        assert timed.cluster.scan(FLIGHTS, where=same).read_all().column("id").to_pylist() == [1]


@pytest.mark.parametrize("name", ["", " ", 5, "month-\udcff"])
def test_a_batch_has_a_name_that_files_can_carry(cluster: SmallCluster, name: object) -> None:
    with pytest.raises(InvalidRequest, match="batch name"):
        cluster.cluster.write(FLIGHTS, numbered(1), batch=name)  # type: ignore[arg-type]
    assert by_key(cluster.cluster.scan(FLIGHTS)) == {}


def test_a_level_is_reached_or_nothing_is_shown(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, numbered(20), consistency="ALL")
    with cluster.without("C"):
        assert len(by_key(cluster.cluster.scan(FLIGHTS))) == 20
        assert cluster.cluster.get(FLIGHTS, 3) == {"id": 3, "note": "x"}
        with pytest.raises(ConsistencyNotReached, match="C/d1"):
            cluster.cluster.scan(FLIGHTS, consistency="ALL")
        with pytest.raises(ConsistencyNotReached, match="C/d1"):
            cluster.cluster.get(FLIGHTS, 3, consistency="ALL")


def test_a_lookup_needs_the_replicas_of_its_own_key_only(tmp_path: Path) -> None:
    apart = placed(tmp_path, FOUR, {0: "AB", 1: "CX"}, configuration=ONE_TRY)
    with apart.cluster:
        apart.cluster.write(FLIGHTS, numbered(20), consistency="ALL")
        first = set(apart.rows_on("A"))
        assert 0 < len(first) < 20
        with apart.without("CX"):
            for key in range(20):
                if key in first:
                    assert apart.cluster.get(FLIGHTS, key, consistency="ALL") == {"id": key, "note": "x"}
                else:
                    with pytest.raises(ConsistencyNotReached):
                        apart.cluster.get(FLIGHTS, key, consistency="ALL")


def test_damage_is_read_round_by_lookups_and_told_by_scans_once(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, numbered(2_000, "a note that is somewhat longer"), consistency="ALL")
    for node in "AB":
        for path in (cluster.directory / node).rglob("*.parquet"):
            if "_delta_log" not in str(path):
                flip_in_a_page(path, "id")
    for key in (1, 700):
        assert cluster.cluster.get(FLIGHTS, key) == {"id": key, "note": "a note that is somewhat longer"}
    assert len(read_again(cluster)) == 2_000
    for path in (cluster.directory / "C").rglob("*.parquet"):
        if "_delta_log" not in str(path):
            flip_in_a_page(path, "id")
    with pytest.raises(RowsUnreadable):
        read_again(cluster)


@pytest.mark.parametrize("keys", [7, [7], {"id": 7}, [{"id": "7"}]])
def test_keys_that_are_none_are_refused_with_what_a_key_has(cluster: SmallCluster, keys: object) -> None:
    """The columns that are no part of the key are not asked for."""
    with pytest.raises(InvalidRequest) as refused:
        cluster.cluster.scan(FLIGHTS, keys=keys)
    assert "key" in refused.value.reason
    assert "id" in refused.value.hint
    assert "note" not in refused.value.hint


def test_a_filter_names_its_columns(wide: SmallCluster) -> None:
    """A read has other columns than the table, so that a place would mean another column in each of its ways."""
    lake = wide.cluster
    lake.write(FLIGHTS, [{"carrier": "FieldPath(0)", "flight": n, "delay": float(n), "gate": "A"} for n in range(9)])
    key = [{"carrier": "FieldPath(0)", "flight": 5}]
    for where in (pc.field(1) == 5, (pc.field("flight") == 5) & pc.field(2).is_valid()):
        for read in (
            lambda where=where: lake.scan(FLIGHTS, where=where),
            lambda where=where: lake.count(FLIGHTS, where=where),
            lambda where=where: lake.scan(FLIGHTS, where=where, keys=key),
            lambda where=where: lake.overwrite(FLIGHTS, [], where=where),
        ):
            with pytest.raises(InvalidRequest, match="by its place") as refused:
                read()
            assert "field('carrier')" in refused.value.hint
    assert lake.count(FLIGHTS, where=pc.field("carrier") == "FieldPath(0)") == 9, "a text is no place"


def test_a_filter_that_has_no_value_for_some_row_is_refused(cluster: SmallCluster) -> None:
    lake = cluster.cluster
    lake.write(FLIGHTS, numbered(9))
    for where in (pc.scalar(10) / pc.field("id") > 2, pc.field("note").cast("int32") == 1, pc.field("id") * 2**62 > 0):
        with pytest.raises(InvalidRequest, match="cannot be computed of all rows"):
            lake.scan(FLIGHTS, where=where).read_all()
        with pytest.raises(InvalidRequest, match="cannot be computed of all rows"):
            lake.count(FLIGHTS, where=where)
    assert lake.count(FLIGHTS, where=pc.scalar(10) / pc.field("id") > 2, keys=[{"id": 4}]) == 0, (
        "that row it has a value for"
    )


def read_again(cluster: SmallCluster) -> dict[int, str | None]:
    """What a scan shows in the end: one that has met damage is begun again."""
    for _ in range(4):
        with suppress(ReadDisturbed):
            return by_key(cluster.cluster.scan(FLIGHTS))
    raise AssertionError("every scan was disturbed")


def test_a_stream_keeps_its_files_until_nobody_holds_it(cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "STANDS_SECONDS", 0.0)
    cluster.cluster.write(FLIGHTS, numbered(20))
    read, held, forgotten = (cluster.cluster.scan(FLIGHTS) for _ in range(3))
    before = leases(cluster)
    assert before >= 3
    # As others take it: DuckDB, Polars.
    assert pa.table(read).num_rows == 20
    del forgotten
    gc.collect()
    cluster.cluster.write(FLIGHTS, numbered(20, "later"))
    assert by_key(held) == dict.fromkeys(range(20), "x"), "it was pinned before"
    cluster.cluster.close()
    assert leases(cluster) == 0


def test_closing_waits_for_gates_that_are_just_ending(cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "STANDS_SECONDS", 0.05)
    ended = Gate.__exit__
    begun = threading.Event()

    def slowly(gate: Gate, *error: object) -> None:
        begun.set()
        time.sleep(0.5)
        ended(gate, *error)  # type: ignore[arg-type]

    monkeypatch.setattr(Gate, "__exit__", slowly)
    cluster.cluster.write(FLIGHTS, numbered(1))
    assert begun.wait(10)
    cluster.cluster.close()
    assert leases(cluster) == 0


def test_reading_without_spark_does_not_import_it() -> None:
    looked = "import sys, epochlake.jobs.cluster, epochlake.jobs.gate.arrow_reading; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
