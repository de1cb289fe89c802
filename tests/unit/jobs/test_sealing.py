"""A sealed file is known to be whole, and nothing but whole, wherever it lies."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import cutting
from epochlake.jobs.replicas.copying import copy_data_file, file_copy
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.damage import ExpectedFile, check_bytes
from epochlake.jobs.replicas.files import DataFile, new_file_id, path_of
from epochlake.jobs.replicas.intervals import FilePart
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.sealing import DamagedBytes, require_intact, require_sealed, sealed_writer

from tests.support.replicas import make_replica, store
from tests.support.storages import STORAGE


def bytes_of(address: ReplicaAddress, file: DataFile) -> Path:
    return Path(address.uri) / file.path


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    file = store(address, ids=range(8))
    path = bytes_of(address, file)
    good = path.read_bytes()
    require_intact(STORAGE, file, str(path))
    footer = int.from_bytes(good[-8:-4], "little") + 8
    for bit in range(0, 8 * len(good), 37):  # 37: every position in a byte has its turn
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(DamagedBytes):
            require_intact(STORAGE, file, str(path))
        if bit // 8 >= len(good) - footer:
            with pytest.raises(DamagedBytes):
                require_sealed(STORAGE, file, str(path))


def test_of_a_small_file_no_bit_before_its_footer_changes_rows_unnoticed(tmp_path: Path) -> None:
    """Whoever reads it at once verifies the checksums of its pages, and as many values as its footer says have to be
    there: so nothing else has to be verified, where its footer is.
    """
    address = make_replica(tmp_path, 1)
    good = bytes_of(address, store(address, ids=range(2))).read_bytes()
    rows = rows_in(good)
    assert rows is not None
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    changed = [bit for bit in range(8 * 4, 8 * footer) if rows_in(flipped(good, bit)) not in (rows, None)]
    assert changed == []


def test_bits_before_the_footer_that_change_rows_for_who_reads_them_in_batches_are_noticed_before_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the header of a page says that it has fewer values, a reader in batches takes these for all that there are.
    Who decodes a file to cut it reads it so.
    """
    address = make_replica(tmp_path, 1)
    file = store(address, ids=range(2))
    path = bytes_of(address, file)
    good = path.read_bytes()
    rows = rows_in_batches(good)
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    quiet = [bit for bit in range(8 * 4, 8 * footer) if rows_in_batches(flipped(good, bit)) not in (rows, None)]
    assert quiet
    for bit in quiet:
        path.write_bytes(flipped(good, bit))
        with pytest.raises(DamagedBytes):
            cut(address, FilePart(file, file.min_token, file.max_token - 1), address)
    # Without that look the piece would lack the row that the file still has.
    monkeypatch.setattr(cutting, "require_sealed", lambda *_: None)
    assert cut(address, FilePart(file, file.min_token, file.max_token - 1), address).rows == 0


def test_bits_of_a_footer_that_change_rows_unnoticed_are_noticed_before_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = make_replica(tmp_path, 1)
    file = store(address, ids=range(2))
    path = bytes_of(address, file)
    good = path.read_bytes()
    rows = rows_in(good)
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    quiet = [bit for bit in range(8 * footer, 8 * len(good), 11) if rows_in(flipped(good, bit)) not in (rows, None)]
    assert quiet
    # The rule that a file is looked at before it is decoded is broken: the look at its row groups comes before that.
    monkeypatch.setattr(cutting, "require_sealed", lambda *_: None)
    for bit in quiet:
        path.write_bytes(flipped(good, bit))
        with pytest.raises(DamagedBytes):
            cut(address, FilePart(file, file.min_token, file.max_token - 1), address)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def rows_in_batches(data: bytes) -> list[dict[str, object]] | None:
    """The same of who reads it in batches."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        return [row for batch in file.iter_batches(use_threads=False) for row in batch.to_pylist()]
    except (OSError, pa.ArrowException, ValueError, OverflowError, MemoryError):
        return None


def rows_in(data: bytes) -> list[dict[str, object]] | None:
    """What a reader is given who believes the footer; None when it is an error."""
    try:
        return (
            pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read(use_threads=False).to_pylist()
        )
    except (OSError, pa.ArrowException, ValueError, OverflowError, MemoryError):
        return None


@pytest.mark.parametrize(
    ("tamper", "damage"),
    [
        (lambda data: data[:-1], "bytes of"),
        (lambda data: b"", "bytes of"),
        (lambda data: bytes(len(data)), "no readable footer"),
        (lambda data: data[:-4] + b"PAR?", "no readable footer"),
        (lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", "no readable footer"),
    ],
)
def test_a_torn_file_is_named_with_what_is_wrong(tmp_path: Path, tamper: Callable[[bytes], bytes], damage: str) -> None:
    address = make_replica(tmp_path, 1)
    file = store(address)
    path = bytes_of(address, file)
    path.write_bytes(tamper(path.read_bytes()))
    with pytest.raises(DamagedBytes, match=damage) as raised:
        require_sealed(STORAGE, file, str(path))
    assert str(path) in str(raised.value)


def test_another_file_under_the_name_is_noticed_though_its_seal_holds(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    file, other = store(address, ids=(1, 2)), store(address, ids=(3, 4))
    assert file.size == other.size
    bytes_of(address, file).write_bytes(bytes_of(address, other).read_bytes())
    with pytest.raises(DamagedBytes, match="another file lies under its name"):
        require_sealed(STORAGE, file, str(bytes_of(address, file)))


def test_a_piece_has_a_seal_of_its_own_and_none_of_the_file_that_it_was_cut_from(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    file = store(address, ids=range(10))
    piece = cut(address, FilePart(file, file.min_token + 2, file.min_token + 5), address)
    assert require_intact(STORAGE, piece, str(bytes_of(address, piece))) is not None
    said = pq.read_metadata(bytes_of(address, piece)).metadata
    assert said[b"epochlake.seal.file"].decode() == piece.file_id
    assert bytes_of(address, piece).read_bytes().count(b"epochlake.seal.file") == 1


def test_rows_that_look_like_a_seal_do_not_spoil_it(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    file = store(address, ids=(1,))
    path = bytes_of(address, file)
    rows = pq.read_table(path, partitioning=None)
    text = "epochlake.seal.footer\x18\x20" + "0" * 32
    rows = rows.set_column(1, "note", pa.array([text])).replace_schema_metadata(None)
    with pa.OSFile(str(path), "wb") as sink, sealed_writer(sink, rows.schema, file.file_id) as writer:
        writer.write(rows)
    assert require_intact(STORAGE, msgspec.structs.replace(file, size=path.stat().st_size), str(path)) is not None


def unsealed(address: ReplicaAddress) -> DataFile:
    """A file as it was staged before files were sealed."""
    file = store(address, ids=range(20))
    rows = pq.read_table(bytes_of(address, file), partitioning=None).replace_schema_metadata(None)
    file_id = new_file_id()
    path = Path(address.uri) / path_of(file.label, file_id)
    pq.write_table(rows, path, store_schema=False, write_page_checksum=True)
    return msgspec.structs.replace(file, file_id=file_id, path=path_of(file.label, file_id), size=path.stat().st_size)


def test_a_file_from_before_seals_is_read_cut_copied_and_checked_by_its_pages(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = unsealed(source)
    path = bytes_of(source, file)
    assert require_sealed(STORAGE, file, str(path)) is None
    assert copy_data_file(file_copy(file, source, target)) == file
    piece = cut(source, FilePart(file, file.min_token, file.min_token + 3), target)
    assert piece.rows == 4
    checked = check_bytes(ExpectedFile(file, source))
    assert checked.damage is None
    assert checked.digest is not None
    path.write_bytes(path.read_bytes()[:200] + b"\xff" * 20 + path.read_bytes()[220:])
    assert check_bytes(ExpectedFile(file, source)).damage is not None


def test_a_damaged_source_is_not_copied_and_replaces_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source, ids=range(50))
    copy_data_file(file_copy(file, source, target))
    good = bytes_of(target, file).read_bytes()
    for _ in range(20):
        flipped = bytearray(good)
        flipped[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        bytes_of(source, file).write_bytes(flipped)
        with pytest.raises(DamagedBytes, match=str(bytes_of(source, file))):
            copy_data_file(file_copy(file, source, target))
        assert bytes_of(target, file).read_bytes() == good
        with pytest.raises(DamagedBytes):
            cut(source, FilePart(file, file.min_token, file.min_token + 3), target)
