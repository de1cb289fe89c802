"""Two releases make the same tables at the same moment, and go on in them in turns: the one whose tables delta-rs made,
and this one, whose tables are made by one commit.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.making import commits_of, metadata_in
from tests.support.releases import Release, packages_of
from tests.support.replicas import make_volume
from tests.support.slices import THOROUGH

BEFORE = "c7854d81dfee"
"""The last commit of which delta-rs made the tables; its wheel is made from the history."""

ROUNDS = 12

SERVER = """
import json
import sys
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica, open_snapshot
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.storage.storage import Storage

table = Table("t-1", "air", "flights", (Column("id", "bigint"), Column("note", "string")), ("id",))


def answer(storage, what, root, number):
    address = ReplicaAddress(storage, "7b0ad0b5-5a5f-4c44-9d4e-6f2f5d1c9a10", 1, root + "/v1", "air", "t-1")
    ledger, log = Ledger(storage, root + "/compactions"), DeltaLog(storage, root + "/log")
    if what == "make":
        create_log_table(storage, root + "/log")
        create_replica(address, table, 1)
        return len(ledger.record([[Merge("t-1", f"c-{number}", 0, 9, 1, 7, (Replaced(f"f-{number}", 0, 9),))]]))
    if what == "write":
        log.fence()
        merge = Merge("t-1", f"c-{number}", 0, 9, 1, 7, (Replaced(f"f-{number}", 0, 9),))
        return [str(raise_fence(address, number)), len(ledger.record([[merge]]))]
    return [len(log.read(0)), str(open_snapshot(address).fence), sorted(ledger.merges("t-1"))]


kept = Storage(StorageSettings())
print("ready", flush=True)
for line in sys.stdin:
    what, root, number, anew = json.loads(line)
    try:
        told = answer(Storage(StorageSettings()) if anew else kept, what, root, number)
    except Exception as error:
        told = repr(error)
    print(json.dumps(told), flush=True)
"""

pytestmark = pytest.mark.skipif(not THOROUGH, reason="builds a wheel: EPOCHLAKE_TESTS_THOROUGH")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages of the release before are, from a wheel of its own."""
    return packages_of(BEFORE, tmp_path_factory.mktemp("before"))


def ask(process: subprocess.Popen[str], what: str, root: Path, number: int = 0, *, anew: bool = False) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps([what, str(root), number, anew]) + "\n")
    process.stdin.flush()


def told(process: subprocess.Popen[str]) -> object:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_two_releases_make_the_same_tables_at_once_and_go_on_in_turns(tmp_path: Path, before: Path) -> None:
    older, newer = (Release(tmp_path / "root", site).program(SERVER) for site in (before, None))
    made = []
    try:
        for process in (older, newer):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for attempt in range(ROUNDS):
            root = tmp_path / str(attempt)
            make_volume(root, 1)
            both = (older, newer) if attempt % 2 else (newer, older)
            for number, process in enumerate(both):
                ask(process, "make", root, number)
            assert [told(process) for process in both] == [1, 1]
            made.append(len(commits_of(str(root / "v1" / "air" / "t-1"))))
            for number in range(2, 10):
                writer, reader = (older, newer) if number % 2 else (newer, older)
                ask(writer, "write", root, number, anew=number % 3 == 0)
                assert told(writer) == [str(number), 1]
                merges = [f"c-{one}" for one in range(number + 1)]
                for process in (reader, writer):
                    for anew in (True, False):
                        ask(process, "read", root, anew=anew)
                        assert told(process) == [0, str(number), merges]
    finally:
        for process in (older, newer):
            process.kill()
            process.wait()
    assert {*made} <= {1, 2}
    assert all(metadata_in(str(tmp_path / str(one) / "log"), 0) for one in range(ROUNDS))


def test_a_root_that_one_release_has_begun_is_gone_on_with_by_the_other(tmp_path: Path, before: Path) -> None:
    root = tmp_path / "root"
    older, newer = Release(root, before), Release(root, None)
    newer.done("init", "--name", "lake")
    for number, release in enumerate((older, newer), start=1):
        volume = str(tmp_path / f"disk{number}")
        release.done("node", "add", f"n{number}", "--datacenter", "dc1", "--rack", f"r{number}", "--volume", volume)
        release.done("coordinator", "run", "--until-idle")
    newer.done("keyspace", "create", "air", "--replication", "dc1=2")
    older.done("table", "create", "air.flights", "--column", "id bigint not null", "--primary-key", "id")
    newer.done("table", "create", "air.seats", "--column", "id bigint not null", "--primary-key", "id")
    for release in (older, newer):
        release.done("coordinator", "run", "--until-idle")
        assert release.run("log", "verify").returncode == 0
        release.done("status")
