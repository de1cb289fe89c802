"""Rows of data files as this process reads them: those of the tokens that are asked for, and never others."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.run_files import rows_of_file
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import DamagedBytes
from epochlake.jobs.replicas.sections import Run
from epochlake.metastore.errors import StorageUnavailable
from epochlake.placement.tokens import TOKEN, Interval

from tests.support.files import stored_versions
from tests.support.replicas import make_replica

COLUMNS = ["id", WRITTEN_AT, DELETED]


@pytest.fixture
def replica(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1)


def read(run: Run, spans: list[Interval] | None = None) -> dict[str, list[object]]:
    parts = rows_of_file(run.copy.address.storage, run.copy.uri, spans, COLUMNS, lambda type_: type_)
    return pa.concat_tables([rows for rows, _ in parts]).to_pydict()  # type: ignore[no-any-return]


def test_rows_of_the_spans_are_read_with_their_positions(replica: ReplicaAddress) -> None:
    run = stored_versions(replica, [(token, token, 1, False) for token in range(20)], group=6)
    assert read(run)["id"] == list(range(20))
    assert read(run, [(3, 4), (11, 12), (30, 40)])[TOKEN] == [3, 4, 11, 12]
    assert read(run, [(30, 40)]) == {TOKEN: [], "id": [], WRITTEN_AT: [], DELETED: []}
    parts = list(rows_of_file(replica.storage, run.copy.uri, [(5, 6), (19, 19)], ["id"], lambda type_: type_))
    assert [positions.tolist() for _, positions in parts] == [[5], [6], [19]]
    assert [rows.num_rows for rows, _ in parts] == [1, 1, 1]


@pytest.mark.parametrize("group", [20, 60])
def test_no_flipped_bit_changes_what_is_read(replica: ReplicaAddress, group: int, seed: int) -> None:
    """Of all that lies before the footer, which has a digest: pages have checksums, their headers have not."""
    run = stored_versions(replica, [(n, 3 * n, 1 + n % 5, n % 7 == 0) for n in range(60)], group=group)
    path = Path(run.copy.uri.removeprefix("file://"))
    good, expected = path.read_bytes(), read(run)
    body = len(good) - int.from_bytes(good[-8:-4], "little") - 8
    refused = 0
    for bit in random.Random(seed).sample(range(8 * body), 1_500):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = read(run)
        except StorageUnavailable as error:
            refused += run.name in str(error)
        else:
            assert found == expected, f"seed {seed}, bit {bit}"
    assert refused > 500


@pytest.mark.parametrize("column", ["id", TOKEN])
def test_no_header_of_a_page_that_has_rotted_hides_rows_from_who_reads_one_column(
    replica: ReplicaAddress, column: str
) -> None:
    """Of several columns one that lacks rows is noticed by Arrow. Of one alone the footer says how many there are."""
    run = stored_versions(replica, [(n, n, 1, False) for n in range(40)], group=20)
    path = Path(run.copy.uri.removeprefix("file://"))
    good = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0)
    [chunk] = [one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == column]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    noticed = 0
    for bit in range(8 * start, 8 * (start + 24)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            parts = list(rows_of_file(replica.storage, run.copy.uri, None, [column], lambda type_: type_))
        except StorageUnavailable as error:
            noticed += run.name in str(error) and "of 20 in a row group" in str(error)
        else:
            assert [value for rows, _ in parts for value in rows.column(column).to_pylist()] == list(range(40)), bit
    assert noticed


def test_a_footer_that_lacks_a_column_is_named_as_damage(replica: ReplicaAddress) -> None:
    """It was looked at when the read was planned, and has rotted since: a name in it is another one."""
    run = stored_versions(replica, [(token, token, 1, False) for token in range(20)], group=20)
    path = Path(run.copy.uri.removeprefix("file://"))
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:start] + data[start:].replace(WRITTEN_AT.encode(), WRITTEN_AT.encode()[::-1]))
    with pytest.raises(DamagedBytes, match=f"{path.name}.*{WRITTEN_AT}"):
        read(run)
