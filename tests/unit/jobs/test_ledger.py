"""The ledger of compactions, and what a merged file stands for."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import ledger as module
from epochlake.jobs.replicas.files import DataFile, cut_id, directory_of
from epochlake.jobs.replicas.intervals import holds, missing, select, superseded
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.rewriting import Mark, NewFile, append_files
from epochlake.metastore.storage.failures import StorageDamaged
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import range_label

from tests.support.storages import STORAGE


def merge(file_id: str, low: int, high: int, *replaced: tuple[str, int, int], epoch: int = 1) -> Merge:
    return Merge("t", file_id, low, high, epoch, 1_700_000_000_000_000, tuple(Replaced(*one) for one in replaced))


def file(file_id: str, low: int, high: int, rows: int = 10, extent: tuple[int, int] | None = None) -> DataFile:
    """A file with a window, and rows all over it or between the tokens of `extent`."""
    name = file_id if "." not in file_id else cut_id(file_id.partition(".")[0], low, high)
    first, last = extent or (low, high)
    path = f"{directory_of(range_label(low, high))}/{name}.parquet"
    return DataFile(name, "0-0", path, 100, rows, first, last, 1, 2, False)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(STORAGE, str(tmp_path / "compactions"))


def test_there_is_none_until_something_was_compacted(ledger: Ledger) -> None:
    assert ledger.merges("t") == {}
    assert ledger.lineage("t", [file("a", 0, 9)]) == {}
    assert not Path(ledger.uri).exists()


def test_entries_come_back_as_they_were_written(ledger: Ledger) -> None:
    one, other = merge("c-1", 0, 9, ("a", 0, 9), ("b", 3, 4)), merge("c-2", 10, 19)
    assert ledger.record([[one], [other]]) == (one, other)
    assert Ledger(STORAGE, ledger.uri).merges("t") == {"c-1": one, "c-2": other}
    assert Ledger(STORAGE, ledger.uri).merges("another") == {}


def test_a_row_is_replaced_by_one_merge_only_and_a_group_is_taken_whole_or_not_at_all(ledger: Ledger) -> None:
    ledger.record([[merge("c-1", 0, 9, ("a", 0, 9))]])
    apart = merge("c-2", 10, 19, ("a", 10, 19))
    groups = [[merge("c-3", 20, 29, ("x", 20, 29)), merge("c-4", 5, 12, ("a", 9, 9))], [apart]]
    assert ledger.record(groups) == (apart,)
    assert sorted(ledger.merges("t")) == ["c-1", "c-2"]


def test_of_many_that_replace_the_same_at_the_same_time_one_is_taken(ledger: Ledger) -> None:
    def attempt(number: int) -> int:
        return len(Ledger(STORAGE, ledger.uri).record([[merge(f"c-{number}", 0, 9, ("a", 0, 9))]]))

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(attempt, range(6))) == [0] * 5 + [1]


def test_what_was_voided_may_be_replaced_again_and_is_still_understood(ledger: Ledger) -> None:
    first, second = merge("c-1", 0, 9, ("a", 0, 9)), merge("c-2", 0, 9, ("a", 0, 9))
    ledger.record([[first]])
    ledger.void([first])
    ledger.void([first])
    assert ledger.record([[second]]) == (second,)
    assert list(Ledger(STORAGE, ledger.uri).merges("t")) == ["c-2"]
    files = [file("c-1", 0, 9), file("a", 0, 9)]
    assert Ledger(STORAGE, ledger.uri).lineage("t", files) == {"c-1": [("a", 0, 9)]}


def test_what_was_merged_on_since_somebody_has_looked_is_not_voided(ledger: Ledger) -> None:
    """It was on no replica when he looked, and had been brought to them and merged with others before he said so."""
    first = merge("c-1", 0, 9, ("a", 0, 9))
    ledger.record([[first]])
    other = Ledger(STORAGE, ledger.uri)
    other.record([[merge("c-2", 0, 9, ("c-1", 0, 9), ("b", 0, 9))]])
    assert ledger.void([first]) == ()
    assert sorted(Ledger(STORAGE, ledger.uri).merges("t")) == ["c-1", "c-2"]
    assert ledger.record([[merge("c-3", 0, 9, ("a", 0, 9))]]) == (), "what it stands for would count twice"


def test_a_merged_file_without_an_entry_is_an_error(ledger: Ledger) -> None:
    with pytest.raises(StorageUnavailable, match="no entry for the merged file c-9"):
        ledger.lineage("t", [file("c-9", 0, 9), file("a", 0, 9)])


def test_lineage_goes_all_the_way_down_within_the_windows_on_the_way(ledger: Ledger) -> None:
    ledger.record([[merge("c-1", 0, 99, ("a", 0, 99), ("b", 0, 49))]])
    ledger.record([[merge("c-2", 40, 59, ("c-1", 40, 59), ("d", 40, 59))]])
    files = [file("c-2", 40, 59), file("a", 0, 99), file("b", 0, 99), file("d", 0, 99)]
    lineage = Ledger(STORAGE, ledger.uri).lineage("t", files)
    assert sorted(lineage["c-2"]) == [("a", 40, 59), ("b", 40, 49), ("d", 40, 59)]


def test_small_files_of_entries_are_put_together_and_nothing_is_lost(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_EVERY", 4)
    for number in range(10):
        ledger.record([[merge(f"c-{number}", 0, 9, (f"a{number}", 0, 9))]])
    again = Ledger(STORAGE, ledger.uri)
    assert len(again.merges("t")) == 10
    opened = again._open()
    assert opened is not None
    assert len(opened.file_uris()) < 4


def test_many_that_record_and_tidy_at_the_same_time_store_each_entry_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_EVERY", 2)

    def record(number: int) -> None:
        for part in range(4):
            Ledger(STORAGE, ledger.uri).record([[merge(f"c-{number}-{part}", 0, 9, (f"a{number}-{part}", 0, 9))]])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(record, range(4)))
    assert sorted(stored(ledger)) == sorted(f"c-{number}-{part}" for number in range(4) for part in range(4))


def test_of_two_that_tidy_the_same_version_one_counts(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        ledger.record([[merge(f"c-{number}", 0, 9, (f"a{number}", 0, 9))]])
    monkeypatch.setattr(module, "COMPACT_EVERY", 2)
    both = [Ledger(STORAGE, ledger.uri), Ledger(STORAGE, ledger.uri)]
    for one in both:
        opened = one._open()
        monkeypatch.setattr(one, "_open", lambda opened=opened: opened)
    for one in both:
        one._tidy("t")
    assert sorted(stored(ledger)) == ["c-0", "c-1", "c-2"]
    assert len(files_of(ledger)) == 1


def test_entries_that_two_optimize_stored_twice_are_read_once_and_put_together_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [merge(f"c-{number}", 0, 9, (f"a{number}", 0, 9)) for number in range(3)]
    for one in written:
        ledger.record([[one]])
    handles = [ledger._open(), ledger._open()]
    for handle in handles:
        assert handle is not None
        handle.optimize.compact()
    assert len(stored(ledger)) == 6
    monkeypatch.setattr(module, "COMPACT_EVERY", 2)
    last = merge("c-9", 0, 9, ("a9", 0, 9))
    ledger.record([[last]])
    assert sorted(stored(ledger)) == ["c-0", "c-1", "c-2", "c-9"]
    assert Ledger(STORAGE, ledger.uri).merges("t") == {one.file_id: one for one in (*written, last)}


def files_of(ledger: Ledger) -> list[module._StoredFile]:
    opened = ledger._open()
    assert opened is not None
    return module._files(opened, "t")


def stored(ledger: Ledger) -> list[str]:
    """The ids of all entries, as often as they are stored."""
    return [entry.file_id for file in files_of(ledger) for entry in module._read_file(STORAGE, ledger.uri, file, "t")]


# What is stored is what was written, or nothing is said


def stored_rows(ledger: Ledger) -> tuple[Path, pa.Table]:
    [found] = files_of(ledger)
    path = Path(ledger.uri, found.path)
    return path, pq.ParquetFile(path).read()


def changed(rows: pa.Table, column: str, value: object) -> pa.Table:
    number = rows.schema.get_field_index(column)
    return rows.set_column(number, rows.schema.field(number), pa.array([value], rows.schema.field(number).type))


ANOTHER = {
    "file_id": "c-2",
    "low": 1,
    "high": 8,
    "epoch": 2,
    "at": 5,
    "replaced": [{"origin": "b", "low": 0, "high": 9}],
    "void": True,
    "hash": "0" * 64,
}


@pytest.mark.parametrize("column", ANOTHER)
def test_an_entry_with_another_value_in_any_column_is_an_error_and_is_never_counted(
    ledger: Ledger, column: str
) -> None:
    ledger.record([[merge("c-1", 0, 9, ("a", 0, 9))]])
    path, rows = stored_rows(ledger)
    assert rows.column_names == list(ANOTHER)
    pq.write_table(changed(rows, column, ANOTHER[column]), path, write_page_checksum=True)
    again = Ledger(STORAGE, ledger.uri)
    for asks in (
        lambda: again.merges("t"),
        lambda: again.lineage("t", [file("c-1", 0, 9), file("a", 0, 9)]),
        lambda: again.record([[merge("c-3", 0, 9, ("z", 0, 9))]]),
    ):
        with pytest.raises(StorageUnavailable, match=f"damaged.*{path.name}.*Restore this file"):
            asks()


def test_no_flipped_byte_of_a_file_of_the_ledger_changes_what_it_says(ledger: Ledger) -> None:
    written = {"c-1": merge("c-1", 0, 9, ("a", 0, 9)), "c-2": merge("c-2", 10, 19, ("b", 10, 19))}
    ledger.record([list(written.values())])
    path, _ = stored_rows(ledger)
    whole = path.read_bytes()
    [stored_file] = files_of(ledger)
    refused = 0
    for place in range(0, len(whole), 23):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with suppress(StorageUnavailable):
            refused += 1
            entries = module._read_file(STORAGE, ledger.uri, stored_file, "t")
            refused -= 1
            assert {entry.file_id: entry for entry in entries} == written, f"byte {place}"
    assert refused > 10


@pytest.mark.parametrize("how", ["torn", "rotten", "empty", "gone"])
def test_a_file_of_the_ledger_that_cannot_be_read_for_ever_is_not_said_to_answer_later(
    ledger: Ledger, how: str
) -> None:
    ledger.record([[merge("c-1", 0, 9, ("a", 0, 9))]])
    path, _ = stored_rows(ledger)
    data = path.read_bytes()
    path.unlink()
    if how != "gone":
        path.write_bytes({"torn": data[:-20], "rotten": bytes(len(data)), "empty": b""}[how])
    with pytest.raises(StorageDamaged, match=path.name) as raised:
        Ledger(STORAGE, ledger.uri).merges("t")
    assert raised.value.hint == f"Restore this file from a backup of {ledger.uri}, and try again"


@pytest.mark.parametrize("how", ["empty", "gone"])
def test_a_commit_of_the_ledger_that_is_torn_is_named_with_what_to_do(ledger: Ledger, how: str) -> None:
    for number in range(3):
        ledger.record([[merge(f"c-{number}", 0, 9, (f"a-{number}", 0, 9))]])
    commit = Path(ledger.uri, "_delta_log", f"{2:020}.json")
    commit.unlink()
    if how == "empty":
        commit.touch()
    # Another process, and the one that had looked at it.
    for one in (Ledger(Storage(StorageSettings()), ledger.uri), ledger):
        for asks in (lambda one=one: one.merges("t"), lambda one=one: one.record([[merge("c-3", 0, 9, ("z", 0, 9))]])):
            with pytest.raises(StorageDamaged, match="ledger of compactions is damaged: commit 2") as raised:
                asks()
            assert str(commit) in raised.value.hint


@pytest.mark.parametrize("how", ["an older copy", "gone"])
def test_entries_that_were_read_before_and_are_not_there_any_more_let_nothing_be_decided(
    ledger: Ledger, how: str, tmp_path: Path
) -> None:
    """Else what the lost entry has replaced could be replaced once more: its file may be committed still."""
    ledger.record([[merge("c-0", 0, 9, ("x", 0, 9))]])
    shutil.copytree(ledger.uri, tmp_path / "older")
    ledger.record([[merge("c-1", 0, 9, ("a", 0, 9))]])
    ledger.record([[merge("c-2", 0, 9, ("b", 0, 9))]])
    shutil.rmtree(ledger.uri)
    if how == "an older copy":
        shutil.copytree(tmp_path / "older", ledger.uri)
    again = merge("c-3", 0, 9, ("a", 0, 9))
    for asks in (lambda: ledger.record([[again]]), lambda: ledger.merges("t"), lambda: ledger.void([again])):
        with pytest.raises(StorageDamaged, match=r"as that of the merged file c-[12]") as raised:
            asks()
        assert raised.value.hint == f"Restore {ledger.uri} from the newest copy, and try again"
    assert Path(ledger.uri).exists() == (how != "gone"), "no new one is made in its place"


def test_a_file_of_the_ledger_with_fewer_entries_than_were_written_is_an_error(ledger: Ledger) -> None:
    ledger.record([[merge("c-1", 0, 9, ("a", 0, 9)), merge("c-2", 10, 19, ("a", 10, 19))]])
    path, rows = stored_rows(ledger)
    pq.write_table(rows.slice(0, 1), path)
    with pytest.raises(StorageUnavailable, match="holds 1 entries, and 2 were written"):
        Ledger(STORAGE, ledger.uri).merges("t")


def test_entries_of_earlier_versions_have_no_hash_and_are_read_and_get_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = merge("c-1", 0, 9, ("a", 0, 9)), merge("c-2", 0, 9, ("b", 0, 9))
    with monkeypatch.context() as earlier:
        earlier.setattr(module, "SCHEMA", pa.schema([field for field in module.SCHEMA if field.name != "hash"]))
        table = ledger._create()
        path = "table_id=t/old.parquet"
        Path(ledger.uri, "table_id=t").mkdir()
        rows = pa.Table.from_pylist([module._row(old)], module.SCHEMA).drop_columns(["table_id"])
        pq.write_table(rows, Path(ledger.uri, path))
        size = Path(ledger.uri, path).stat().st_size
        added = NewFile(path, size, 1, {}, {})
        assert append_files(STORAGE, table, 1, [added], Mark(module.APP_ID, 1), {"table_id": "t"})
    assert Ledger(STORAGE, ledger.uri).merges("t") == {"c-1": old}
    monkeypatch.setattr(module, "COMPACT_EVERY", 2)
    assert Ledger(STORAGE, ledger.uri).record([[new]]) == (new,)
    assert Ledger(STORAGE, ledger.uri).merges("t") == {"c-1": old, "c-2": new}
    _, rows = stored_rows(ledger)
    assert set(rows["hash"].to_pylist()) == {module.entry_hash(old), module.entry_hash(new)}


LINEAGE = {"c-1": [("a", 0, 99), ("b", 0, 49)]}
MERGED, A, B = file("c-1", 0, 99), file("a", 0, 99), file("b", 0, 99)


def test_what_a_merged_file_stands_for_is_neither_missing_nor_read_beside_it() -> None:
    assert missing([A], [MERGED], 0, 99, LINEAGE) == []
    assert [(part.file.file_id, part.low, part.high) for part in missing([B], [MERGED], 0, 99, LINEAGE)] == [
        ("b", 50, 99)
    ]
    assert [(part.file.file_id, part.low) for part in select([A, MERGED, B], 0, 99, LINEAGE)] == [("b", 50), ("c-1", 0)]
    assert [part.file.file_id for part in missing([MERGED], [A, B], 0, 99, LINEAGE)] == ["c-1"]
    assert holds([MERGED], A, LINEAGE)
    assert not holds([MERGED], B, LINEAGE)


def test_a_piece_of_a_merged_file_stands_for_what_is_in_its_window() -> None:
    piece = file("c-1.", 0, 39)
    assert [(part.low, part.high) for part in missing([A], [piece], 0, 99, LINEAGE)] == [(40, 99)]


def test_a_merged_file_without_a_row_hides_what_it_replaced() -> None:
    empty = file("c-1", 0, 99, rows=0)
    assert select([empty, A], 0, 99, LINEAGE) == []
    assert [part.file.file_id for part in missing([empty], [A], 0, 99, LINEAGE)] == ["c-1"]


def test_superseded_is_what_has_all_of_its_rows_in_merged_files() -> None:
    inside = file("b", 0, 99, extent=(10, 40))
    assert superseded([MERGED, A, B], LINEAGE) == [A]
    assert superseded([MERGED, inside], LINEAGE) == [inside]
    assert superseded([A, B], LINEAGE) == []
