"""A table is made by one commit: of several who make it at once one does, and who is killed leaves no half of it."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from epochlake.jobs.replicas.ledger import SCHEMA, Ledger, Merge, Replaced
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica, open_snapshot
from epochlake.metastore import delta_commits, delta_tables
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.delta_commits import MADE_ONCE, SyncedCommits, commit_uri
from epochlake.metastore.delta_tables import NewTable, create_table
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.storage.failures import StorageDamaged, StorageMisconfigured
from epochlake.metastore.storage.local_disk import LocalDisk
from epochlake.metastore.storage.memory_disk import MemoryDisk
from epochlake.metastore.storage.storage import Storage

from tests.support import power
from tests.support.killed_access import Killed
from tests.support.logs import chain
from tests.support.making import KINDS, commits_of, metadata_in, use
from tests.support.power import disk
from tests.support.replicas import CLUSTER_ID, TABLE, make_volume
from tests.support.storages import STORAGE, forget

__all__ = ["disk"]

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])

STRUCTS = Table(
    table_id="t-2",
    keyspace="air",
    name="wide",
    columns=(
        Column("id", "bigint"),
        Column("at", "timestamp_ntz"),
        Column("seats", "array<struct<row:int,letter:string>>"),
        Column("price", "decimal(12,2)"),
        Column("tags", "map<string,string>"),
    ),
    primary_key=("id",),
)


def at_once(count: int, call: Callable[[], Any]) -> list[Any]:
    """What so many threads got that have called it at the same instant: values, and errors."""
    begin, got = threading.Barrier(count), []

    def one() -> None:
        begin.wait()
        try:
            got.append(call())
        except BaseException as error:
            got.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


@pytest.mark.parametrize("kind", KINDS)
def test_of_several_threads_that_make_a_table_at_once_one_does(tmp_path: Path, kind: str) -> None:
    for attempt in range(20):
        root = tmp_path / str(attempt)
        make_volume(root, 1)
        [uri] = set(at_once(4, lambda root=root: KINDS[kind](Storage(StorageSettings()), root)))  # type: ignore[misc]
        assert commits_of(uri) == ["00000000000000000000.json"]
        use(STORAGE, uri, kind)


def _make_many(kind: str, roots: list[Path], begin: Any, told: Any) -> None:
    for root in roots:
        begin.wait(60)
        try:
            told.put(KINDS[kind](STORAGE, root))
        except BaseException as error:
            told.put(repr(error))


@pytest.mark.parametrize("kind", KINDS)
def test_of_several_processes_that_make_a_table_at_once_one_does(tmp_path: Path, kind: str) -> None:
    roots = [tmp_path / str(attempt) for attempt in range(10)]
    for root in roots:
        make_volume(root, 1)
    begin, told = _PROCESSES.Barrier(3), _PROCESSES.Queue()
    processes = [_PROCESSES.Process(target=_make_many, args=(kind, roots, begin, told)) for _ in range(3)]
    for process in processes:
        process.start()
    made = {told.get(timeout=120) for _ in range(3 * len(roots))}
    for process in processes:
        process.join(60)
    assert len(made) == len(roots)
    for uri in sorted(made):
        assert commits_of(uri) == ["00000000000000000000.json"]
        use(STORAGE, uri, kind)


def test_what_is_made_while_a_ledger_is_made_is_all_in_it(tmp_path: Path) -> None:
    """Each of them appends to what the first one has made."""
    numbers = iter(range(4))

    def record() -> Any:
        number = next(numbers)
        ledger = Ledger(Storage(StorageSettings()), str(tmp_path / "compactions"))
        return ledger.record([[Merge("t-1", f"c-{number}", 0, 9, 1, 7, (Replaced(f"f-{number}", 0, 9),))]])

    assert sorted(len(one) for one in at_once(4, record)) == [1, 1, 1, 1]
    assert len(Ledger(STORAGE, str(tmp_path / "compactions")).merges("t-1")) == 4
    assert len(commits_of(str(tmp_path / "compactions"))) == 5


@pytest.mark.parametrize("where", ["on a file system", "in memory", "in an object store"])
def test_of_two_that_make_it_one_is_told_of_wherever_it_lies(tmp_path: Path, where: str) -> None:
    schema = Schema([Field("a", PrimitiveType("long"))]).to_json()
    storage = Storage(StorageSettings(), disk=MemoryDisk() if where == "in memory" else LocalDisk())
    storage.create_directory(str(tmp_path), parents=True)
    for attempt in range(50):
        uri = str(tmp_path / str(attempt))
        wanted = NewTable(schema, {"delta.appendOnly": "true"}, ["a"], name="made")

        def make(uri: str = uri, wanted: NewTable = wanted) -> None:
            if where == "in an object store":
                delta_tables._create_in_store(storage, uri, wanted)
            else:
                create_table(storage, uri, wanted)

        assert at_once(2, make) == [None, None]
        make()
        names = storage.disk.names(f"{uri}/_delta_log")
        assert [name for name in names if not name.startswith((".", "_"))] == ["00000000000000000000.json"]


def _columns(type_: str) -> str:
    return Schema([Field("epoch", PrimitiveType(type_)), Field("more", PrimitiveType("long"))]).to_json()


DIFFERENT: dict[str, tuple[NewTable, str]] = {
    "by name": (NewTable(_columns("long"), {}, [], name="another"), "its name is epochlake_log"),
    "by partitions": (NewTable(_columns("long"), {}, [], ["epoch"], "epochlake_log"), "it has the partition columns"),
    "by a type": (
        NewTable(_columns("string"), {}, ["epoch"], name="epochlake_log"),
        "its column epoch has the type long",
    ),
}


@pytest.mark.parametrize("how", DIFFERENT)
def test_a_table_that_is_another_one_than_is_wanted_is_named_and_left_alone(tmp_path: Path, how: str) -> None:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    before = Path(commit_uri(uri, 0)).read_bytes()
    wanted, said = DIFFERENT[how]
    with pytest.raises(StorageMisconfigured, match=f"another table.*{said}") as refused:
        create_table(STORAGE, uri, wanted)
    assert "Move it elsewhere" in refused.value.hint
    with pytest.raises(StorageMisconfigured, match=said):
        delta_tables._create_in_store(STORAGE, uri, wanted)
    assert (commits_of(uri), Path(commit_uri(uri, 0)).read_bytes()) == (["00000000000000000000.json"], before)


def test_a_ledger_that_another_release_makes_at_the_same_time_may_have_fewer_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "compactions")
    earlier = Schema.from_arrow(SCHEMA.remove(SCHEMA.get_field_index("hash")))
    DeltaTable.create(uri, earlier, partition_by=["table_id"], name="epochlake_compactions")
    Ledger(STORAGE, uri)._create()
    use(STORAGE, uri, "a ledger")


@pytest.mark.parametrize("table", [TABLE, STRUCTS], ids=["plain", "with later types"])
def test_a_replica_is_made_as_delta_rs_makes_it(tmp_path: Path, table: Table) -> None:
    uri = make_volume(tmp_path, 1)
    address = ReplicaAddress(STORAGE, CLUSTER_ID, 1, uri, table.keyspace, table.table_id)
    create_replica(address, table, 1)
    _require_like_delta_rs(tmp_path / "theirs", address.uri)
    assert open_snapshot(address).fence == 1


@pytest.mark.parametrize("kind", ["a log", "a ledger"])
def test_what_delta_rs_writes_to_make_a_table_is_written_here(tmp_path: Path, kind: str) -> None:
    _require_like_delta_rs(tmp_path / "theirs", KINDS[kind](STORAGE, tmp_path))


def _require_like_delta_rs(theirs: Path, uri: str) -> None:
    ours = metadata_in(uri, 0)
    assert ours["configuration"].pop(MADE_ONCE) == "true"
    DeltaTable.create(
        str(theirs),
        Schema.from_json(ours["schemaString"]),
        partition_by=ours["partitionColumns"] or None,
        name=ours["name"],
        description=ours["description"],
        configuration=ours["configuration"],
        raise_if_key_not_exists=False,
    )
    mine, other = DeltaTable(uri), DeltaTable(str(theirs))
    changing = ("id", "createdTime")
    said = [{name: one[name] for name in one if name not in changing} for one in (ours, metadata_in(str(theirs), 0))]
    assert said[0] == said[1]
    assert _protocol_in(uri) == _protocol_in(str(theirs))
    assert (mine.schema(), mine.protocol()) == (other.schema(), other.protocol())
    assert mine.history()[0]["operation"] == other.history()[0]["operation"] == "CREATE TABLE"


def _protocol_in(uri: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in Path(commit_uri(uri, 0)).read_bytes().splitlines()]
    [found] = [line["protocol"] for line in lines if "protocol" in line]
    return {name: sorted(value) if isinstance(value, list) else value for name, value in found.items()}


CHANGES = ("write", "link", "rename", "delete", "make_directory", "sync", "delete_directory")


class DyingDisk:
    """A local disk of a process that ends at its n-th step: before it, after it, or half-way of what is written."""

    def __init__(self, step: int, how: str) -> None:
        self._disk, self._left, self._how = LocalDisk(), step, how
        self.is_over = False

    def __getattr__(self, name: str) -> Any:
        whole = getattr(self._disk, name)
        if not callable(whole):
            return whole

        def call(*arguments: Any, **named: Any) -> Any:
            if self.is_over:
                raise Killed
            if name not in CHANGES:
                return whole(*arguments, **named)
            self._left -= 1
            if self._left:
                return whole(*arguments, **named)
            self.is_over = True
            if self._how == "half-way" and name == "write":
                whole(arguments[0], arguments[1][: len(arguments[1]) // 2], **named)
            elif self._how == "after":
                whole(*arguments, **named)
            raise Killed

        return call


@pytest.mark.parametrize("how", ["before", "half-way", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_process_has_left_is_a_whole_table_or_none_and_in_nobodys_way(
    tmp_path: Path, kind: str, how: str
) -> None:
    seen = set()
    for step in range(1, 40):
        root = tmp_path / str(step)
        make_volume(root, 1)
        dying = DyingDisk(step, how)
        storage = Storage(StorageSettings(), disk=dying)  # type: ignore[arg-type]
        with suppress(Killed):
            KINDS[kind](storage, root)
        if not dying.is_over:
            break
        forget()
        found = [place for place in root.rglob("_delta_log") if commits_of(str(place.parent))]
        for place in found:
            assert DeltaTable(str(place.parent)).version() == 0
            assert metadata_in(str(place.parent), 0)["id"]
            assert delta_commits.torn_commits(STORAGE, str(place.parent)) == []
        seen.add(bool(found))
        uri = KINDS[kind](STORAGE, root)
        assert commits_of(uri) == ["00000000000000000000.json"]
        use(STORAGE, uri, kind)
    assert seen == {False, True}
    assert step > 5


@pytest.mark.parametrize("torn", [False, True], ids=["names are lost", "names stay"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_leaves_a_whole_table_or_one_that_can_be_made(
    disk: power.Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, torn: bool
) -> None:
    root = disk.root / "root"
    make_volume(root, 1)
    STORAGE.sync_always(directories=[str(disk.root), str(root)])

    def can_be_made(after: Path) -> None:
        use(STORAGE, KINDS[kind](STORAGE, after / "root"), kind)

    def is_there(after: Path) -> None:
        uri = made.replace(str(disk.root), str(after))
        assert commits_of(uri)[0] == "00000000000000000000.json"
        can_be_made(after)

    whole = delta_commits.sync_commits

    def synced_beside(*arguments: Any) -> None:
        """Somebody else syncs something at any time: then what has a name has no bytes yet where it was not synced."""
        STORAGE.sync_always(directories=[str(disk.root)])
        whole(*arguments)

    monkeypatch.setattr(delta_commits, "sync_commits", synced_beside)
    disk.promise("the table", can_be_made)
    made = KINDS[kind](STORAGE, root)
    disk.promise("the table", is_there)
    STORAGE.sync_always(directories=[str(disk.root)])
    monkeypatch.setattr(delta_commits, "sync_commits", whole)
    assert disk.check_all(tmp_path / "after", torn=torn) > 3


def test_nobody_sees_a_table_before_its_directory_is_on_the_disk(disk: power.Disk, tmp_path: Path) -> None:
    """Whoever builds on it does not know that it was just made, and syncs nothing of it but his own commit."""
    (disk.root / "root").mkdir()
    STORAGE.sync_always(directories=[str(disk.root)])
    uri, entries = str(disk.root / "root" / "log"), chain(1)
    whole = delta_commits.put_commit

    def put_and_built_upon(*arguments: Any, **named: Any) -> bool:
        put = whole(*arguments, **named)
        if arguments[1].version == 0:
            log = DeltaLog(STORAGE, uri)
            log.read(0)
            log.append(entries)
            disk.promise("the epoch", lambda root: _has(root / "root" / "log", entries))
            STORAGE.sync_always(directories=[uri + "/_delta_log"])
        return put

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delta_tables.delta_commits, "put_commit", put_and_built_upon)
        create_log_table(STORAGE, uri)
    assert disk.check_all(tmp_path / "after") > 0


def _has(uri: Path, entries: Any) -> None:
    assert DeltaLog(STORAGE, str(uri)).read(0) == entries


def test_a_first_commit_that_is_damaged_is_not_made_anew(tmp_path: Path) -> None:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    Path(commit_uri(uri, 0)).write_bytes(b"")
    STORAGE.kept(SyncedCommits).newest.clear()
    with pytest.raises(StorageDamaged, match=r"commit 0 of the table .* is empty"):
        create_log_table(STORAGE, uri)
    assert Path(commit_uri(uri, 0)).read_bytes() == b""


def test_a_log_whose_first_commits_were_cleaned_up_is_not_made_anew(tmp_path: Path) -> None:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    log = DeltaLog(STORAGE, uri)
    for entry in chain(3):
        log.read(entry.epoch - 1)
        log.append([entry])
    DeltaTable(uri).create_checkpoint()
    for version in range(3):
        Path(commit_uri(uri, version)).unlink()
    create_log_table(Storage(StorageSettings()), uri)
    assert commits_of(uri) == ["00000000000000000003.json"]
    Path(commit_uri(uri, 3)).unlink()
    create_table(Storage(StorageSettings()), uri, NewTable('{"fields":[]}', {}, []))
    assert commits_of(uri) == []
