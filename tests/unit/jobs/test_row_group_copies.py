"""Row groups that are copied: the same rows as by decoding, every byte proved, and nothing but offsets changed."""

from __future__ import annotations

import datetime
import decimal
import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import cutting, row_groups
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.files import DataFile, new_file_id, path_of
from epochlake.jobs.replicas.footer_groups import MAGIC, UnknownLayout, footer_of, moved_to, read_footer
from epochlake.jobs.replicas.intervals import FilePart
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.sealing import DamagedBytes, read_seal, require_intact, sealed_writer
from epochlake.jobs.replicas.thrift_compact import I64, Field, MalformedThrift, read_struct, write_struct
from epochlake.placement.tokens import range_label

from tests.support.replicas import make_replica
from tests.support.storages import STORAGE

LOW, HIGH = -1000, 1000
LABEL = range_label(LOW, HIGH)


@pytest.fixture
def address(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1, fence=5)


def random_rows(chance: random.Random, count: int) -> pa.Table:
    """Rows in token order, with a column of each type, nulls and tombstones in them."""
    tokens = sorted(chance.choices(range(LOW, HIGH), k=count))

    def column(type_: pa.DataType, value: object) -> pa.Array:
        share = chance.choice([0.0, 0.2, 1.0])
        return pa.array([None if chance.random() < share else value(token) for token in tokens], type_)  # type: ignore[operator]

    nested = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.map_(pa.string(), pa.string()))])
    epoch = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "tiny": column(pa.int8(), lambda token: token % 100),
            "flag": column(pa.bool_(), lambda token: token % 3 == 0),
            "single": column(pa.float32(), lambda token: token / 7),
            "double": column(pa.float64(), lambda token: float("nan") if token % 5 == 0 else token / 3),
            "text": column(pa.string(), lambda token: "long " * (token % 90) if token % 4 else ""),
            "word": column(pa.string(), lambda token: f"word {token % 3}"),
            "bytes": column(pa.binary(), lambda token: bytes([token % 256]) * 3),
            "day": column(pa.date32(), lambda token: datetime.date(2026, 1, 1) + datetime.timedelta(token)),
            "at": column(pa.timestamp("us", "UTC"), lambda token: epoch + datetime.timedelta(seconds=token)),
            "local": column(pa.timestamp("us"), lambda token: datetime.datetime(2026, 1, 1, 0, 0, token % 60)),
            "small": column(pa.decimal128(12, 2), lambda token: decimal.Decimal(token) / 4),
            "large": column(pa.decimal128(38, 4), lambda token: decimal.Decimal(token) * 10**12),
            "nested": column(nested, lambda token: {"a": [token, None], "b": [("k", str(token))]}),
            "list": column(pa.list_(pa.string()), lambda token: [] if token % 2 else ["x", None]),
            "_token": pa.array(tokens, pa.int64()),
            "_written_at": pa.array([10_000 + token for token in tokens], pa.int64()),
            "_deleted": pa.array([chance.random() < 0.3 for _ in tokens], pa.bool_()),
        }
    )


def stored(address: ReplicaAddress, rows: pa.Table, sizes: list[int]) -> DataFile:
    """A sealed file with row groups of these sizes in turn."""
    file_id = new_file_id()
    path = path_of(LABEL, file_id)
    uri = f"{address.uri}/{path}"
    STORAGE.create_directory(uri.rpartition("/")[0])
    with STORAGE.new_file(uri) as sink, sealed_writer(sink, rows.schema, file_id) as writer:
        start = number = 0
        while start < rows.num_rows:
            size = sizes[number % len(sizes)]
            writer.write(rows.slice(start, size))
            start, number = start + size, number + 1
    tokens, times = rows["_token"].to_pylist(), rows["_written_at"].to_pylist()
    deleted = any(rows["_deleted"].to_pylist())
    size = STORAGE.size_of(uri) or 0
    return DataFile(file_id, LABEL, path, size, rows.num_rows, tokens[0], tokens[-1], min(times), max(times), deleted)


def place(address: ReplicaAddress, file: DataFile) -> Path:
    return Path(address.uri) / file.path


def contents(address: ReplicaAddress, file: DataFile) -> pa.Table:
    return pq.ParquetFile(place(address, file), page_checksum_verification=True).read()


def shown(rows: pa.Table) -> str:
    """The rows as text, in which a number that is not a number equals itself."""
    return repr(rows.to_pylist())


def without_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_groups_to_copy", lambda *asked: None)


def test_what_is_copied_is_what_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    source, copied, decoded = (make_replica(tmp_path, volume) for volume in (1, 2, 3))
    copies = 0
    for _ in range(12):
        rows = random_rows(chance, chance.randint(1, 300))
        file = stored(source, rows, [chance.randint(1, 60) for _ in range(5)])
        for _ in range(4):
            low, high = sorted(chance.choices(range(LOW, HIGH), k=2))
            part = FilePart(file, low, high)
            copies += cutting._groups_to_copy(STORAGE, f"{source.uri}/{file.path}", file, (low, high)) is not None
            one = cut(source, part, copied)
            with monkeypatch.context() as patch:
                without_copying(patch)
                other = cut(source, part, decoded)
            assert msgspec.structs.replace(one, size=0) == msgspec.structs.replace(other, size=0), f"seed {seed}"
            found = contents(copied, one)
            assert shown(found) == shown(contents(decoded, other)), f"seed {seed}"
            assert found.schema == contents(decoded, other).schema
            assert require_intact(STORAGE, one, f"{copied.uri}/{one.path}") is not None
            assert_statistics_hold(place(copied, one))
            # A piece is cut once more, as every file is.
            middle = (low + high) // 2
            half = cut(copied, FilePart(one, low, middle), copied)
            assert half.rows == pc.sum(pc.less_equal(found["_token"], middle)).as_py() or half.rows == 0
            assert require_intact(STORAGE, half, f"{copied.uri}/{half.path}") is not None
    assert copies > 5, "nothing was copied"


def assert_statistics_hold(path: Path) -> None:
    """What a footer says of each row group is true of its rows."""
    file = pq.ParquetFile(path)
    assert file.metadata.num_rows == sum(file.metadata.row_group(n).num_rows for n in range(file.num_row_groups))
    for number in range(file.num_row_groups):
        said, rows = file.metadata.row_group(number), file.read_row_group(number)
        assert said.num_rows == rows.num_rows
        for column in range(said.num_columns):
            chunk = said.column(column)
            name = chunk.path_in_schema
            if name in ("_token", "_written_at", "text", "day", "small") and chunk.statistics.has_min_max:
                expected = pc.min_max(rows[name]).as_py()
                assert (chunk.statistics.min, chunk.statistics.max) == (expected["min"], expected["max"])
                assert chunk.statistics.null_count == rows[name].null_count


def test_row_groups_within_the_window_keep_their_bytes_and_at_most_two_are_decoded(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows(random.Random(1), 400)
    file = stored(address, rows, [25])
    decoded: list[int] = []
    decode = cutting._decoded
    monkeypatch.setattr(cutting, "_decoded", lambda *asked: decoded.append(1) or decode(*asked))
    tokens = rows["_token"].to_pylist()
    piece = cut(address, FilePart(file, tokens[60], tokens[333]), address)
    assert len(decoded) == 2
    old = {one.digest for one in read_seal(STORAGE, file, str(place(address, file))).groups or ()}
    new = [one.digest for one in read_seal(STORAGE, piece, str(place(address, piece))).groups or ()]
    assert [digest in old for digest in new] == [False] + [True] * (len(new) - 2) + [False]
    assert len(new) > 8
    inner = cut(address, FilePart(file, tokens[74] + 1, tokens[300]), address)
    assert inner.rows > 0


def test_a_flipped_bit_is_never_copied(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    rows = random_rows(chance, 120)
    file = stored(source, rows, [20])
    path = place(source, file)
    good = path.read_bytes()
    tokens = rows["_token"].to_pylist()
    part = FilePart(file, tokens[30], tokens[100])
    uri = f"{source.uri}/{file.path}"
    found = cutting._groups_to_copy(STORAGE, uri, file, (part.low, part.high))
    assert found is not None
    touched = [range(seal.start, seal.start + seal.size) for _, seal, _ in found.groups]
    expected = shown(contents(target, cut(source, part, target)))
    footer = len(good) - len(read_seal(STORAGE, file, uri).footer)
    refused = 0
    for _ in range(60):
        for left in target_files(target, file):
            left.unlink()
        bit = chance.randrange(8 * len(good))
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(DamagedBytes):
            require_intact(STORAGE, file, uri)
        if any(bit // 8 in one for one in touched) or bit // 8 >= footer:
            with pytest.raises(DamagedBytes):
                cut(source, part, target)
            assert target_files(target, file) == []
            refused += 1
        else:
            assert shown(contents(target, cut(source, part, target))) == expected
    assert refused > 5


def target_files(target: ReplicaAddress, file: DataFile) -> list[Path]:
    folder = place(target, file).parent
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_file_of_an_earlier_version_is_decoded(address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(random.Random(2), 100)
    file = stored(address, rows, [10])
    seal = read_seal(STORAGE, file, str(place(address, file)))
    window = (rows["_token"][20].as_py(), rows["_token"][80].as_py())
    uri = f"{address.uri}/{file.path}"
    assert cutting._groups_to_copy(STORAGE, uri, file, window) is not None
    monkeypatch.setattr(cutting, "read_seal", lambda *asked: seal._replace(groups=None))
    assert cutting._groups_to_copy(STORAGE, uri, file, window) is None


def footer_bytes(path: Path) -> bytes:
    data = path.read_bytes()
    return data[-int.from_bytes(data[-8:-4], "little") - 8 : -8]


def test_a_footer_comes_out_as_it_went_in(address: ReplicaAddress, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        file = stored(address, random_rows(chance, chance.randint(1, 50)), [chance.randint(1, 9)])
        data = footer_bytes(place(address, file))
        assert write_struct(read_struct(data)) == data
        footer = read_footer(data)
        moved = [moved_to(moved_to(group, 10**12), group.start) for group in footer.groups]
        assert moved == list(footer.groups)
        again = pq.read_metadata(pa.BufferReader(MAGIC + footer_of(footer, moved, {"k": "v"})))
        assert (again.num_rows, again.metadata) == (file.rows, {b"k": b"v"})


def test_no_bytes_make_the_reader_of_footers_fail_otherwise(address: ReplicaAddress, seed: int) -> None:
    chance = random.Random(seed)
    data = footer_bytes(place(address, stored(address, random_rows(chance, 20), [7])))
    for _ in range(2000):
        spoilt = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        try:
            read_footer(bytes(spoilt[: chance.choice([len(spoilt), chance.randrange(len(spoilt))])]))
        except (UnknownLayout, MalformedThrift):
            continue


@pytest.mark.parametrize("number", [1, 4, 5, 6, 7, 8])
def test_a_chunk_with_bytes_elsewhere_is_not_copied(address: ReplicaAddress, number: int) -> None:
    struct = read_struct(footer_bytes(place(address, stored(address, random_rows(random.Random(3), 9), [9]))))
    chunk = struct[4].value.values[0][1].value.values[3]
    struct[4].value.values[0][1].value.values[3] = dict(sorted({**chunk, number: Field(I64, 77)}.items()))
    with pytest.raises(UnknownLayout, match="column chunk has fields"):
        read_footer(write_struct(struct))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "ends 1 bytes early"),
        (b"\x15", "ends 1 bytes early"),
        (b"\x00\x00", "1 bytes follow"),
        (b"\x18\x05ab", "ends 3 bytes early"),
        (b"\x1d\x00", "there is no type 13"),
        (b"\x19\xfc\xff\xff\xff\x7f\x00", "elements do not fit"),
        (b"\x16" + b"\xff" * 12, "more than 64 bits"),
        (b"\x15\xff\xff\xff\xff\xff\x7f\x00", "more than 32 bits"),
        (b"\x1c" * 100, "lie in each other"),
        (b"\x16\x02\x06\x00\x02\x00", "field 0 after field 1"),
        (b"\x19\x11\x07", "7 is no boolean"),
    ],
)
def test_what_is_no_thrift_is_said(data: bytes, said: str) -> None:
    with pytest.raises(MalformedThrift, match=said):
        read_struct(data)


def test_every_kind_of_value_comes_out_as_it_went_in() -> None:
    many = b"\xf5\x14" + bytes(range(20))
    data = (
        b"\x11\x12\x13\xff\x14\x03\x15\x80\x01\x16\x01\x17" + bytes(8) + b"\x18\x02hi\x19" + many
        + b"\x1a\x21\x01\x02\x1b\x01\x85\x01a\x02\x1b\x00\x1c\x00\x05\xc8\x01\x02\x00"
    )  # fmt: skip
    found = read_struct(data)
    assert [field.type for field in found.values()] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 12, 5]
    assert (found[4].value, found[5].value, found[6].value, found[100].value) == (-2, 64, -1, 1)
    assert write_struct(found) == data
    with pytest.raises(MalformedThrift, match="more than 64 bits"):
        write_struct({1: Field(I64, 1 << 63)})


# Where row groups end


def test_a_boundary_is_the_one_that_a_split_comes_to_first(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        low, high = sorted({chance.randrange(-(2**63), 2**63) >> chance.randrange(60) for _ in range(9)})[:2]
        found = row_groups.first_boundary(low, high)
        assert low < found <= high
        bits = next(k for k in range(1, 65) if (low + 2**63) >> 64 - k != (high + 2**63) >> 64 - k)
        assert (found + 2**63) % (1 << 64 - bits) == 0, "it is no boundary of 2^bits tablets, where both first part"


def groups_of(tokens: list[int], chance: random.Random, wide: int = 1) -> list[pa.Table]:
    rows = pa.table({"_token": pa.array(tokens, pa.int64()), "x": ["x" * wide] * len(tokens)})
    batches, start = [], 0
    while start < len(tokens):
        size = chance.randint(1, 400)
        batches += rows.slice(start, size).combine_chunks().to_batches()
        start += size
    found = list(row_groups.in_row_groups(batches))
    assert pa.concat_tables([rows.schema.empty_table(), *found]).equals(rows)
    return found


def test_row_groups_end_at_the_middles_and_none_is_small_or_large(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 100)
    chance = random.Random(seed)
    for tablet in (0, 5):
        width = 2**61
        first = -(2**63) + tablet * width
        tokens = sorted(chance.randrange(first, first + width) for _ in range(3000))
        found = groups_of(tokens, chance)
        ends = {group["_token"][-1].as_py() for group in found}
        for middle in (first + width // 2, first + width // 4, first + 3 * width // 4):
            assert max(token for token in tokens if token < middle) in ends
        assert all(13 <= group.num_rows <= 100 for group in found[:-1])
        assert len(found) < 2.5 * 3000 / 100


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (25, 1), (60, 2), (100, 2)])
def test_a_small_file_has_one_row_group_and_one_that_is_worth_it_two(
    monkeypatch: pytest.MonkeyPatch, seed: int, count: int, expected: int
) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 104)
    chance = random.Random(seed)
    tokens = [-(2**63) + number * (2**64 // 100) for number in range(count)] if count < 100 else None
    tokens = tokens or sorted(chance.randrange(-(2**63), 2**63) for _ in range(count))
    assert len(groups_of(tokens, chance)) == expected


def test_rows_with_one_token_and_large_rows_make_row_groups_too(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 100)
    assert [group.num_rows for group in groups_of([7] * 250, chance)] == [100, 100, 50]
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 1000)
    assert max(group.num_rows for group in groups_of(sorted(chance.choices(range(99), k=80)), chance, 90)) <= 12
    assert {group.num_rows for group in groups_of([1, 2, 3], chance, 5000)} == {1}
