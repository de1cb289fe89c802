"""Processes of an earlier release write and read while this one changes the columns of their table.

What that release understands it follows: nothing that it was told of is lost. What it does not understand waits for a
feature, which is not enabled while such a process lives; one that nobody saw is refused with one line.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster, open_cluster
from epochlake.metastore import configuration
from epochlake.metastore.errors import Rejected
from epochlake.placement.rejections import Code

from tests.support.releases import Release, packages_of
from tests.support.slices import THOROUGH

BEFORE = "753c69550840"
"""The commit before fields of structs are altered; its wheel is made from the history."""

TABLE = "air.flights"
NOT_SUPPORTED = "which version 0.1.0 does not support"

WRITER = """
import itertools
import sys
from epochlake.jobs.cluster import open_cluster
from epochlake.jobs.gate import standing
from epochlake.metastore import configuration
from epochlake.placement.errors import EpochlakeError
# The columns that a gate has found first count for what is written by it.
standing.STANDS_SECONDS = 3600.0
with open_cluster(configuration.load(None, root=sys.argv[1])) as cluster:
    try:
        for number in itertools.count():
            if not sys.stdin.readline():
                break
            row = {"id": number, "note": f"of {number}", "n": 7, "address": {"street": "Main"}}
            cluster.write("air.flights", [row], consistency="QUORUM")
            assert cluster.scan("air.flights").read_all().num_rows > number
            print(number, flush=True)
    except EpochlakeError as error:
        print("stopped", getattr(error, "code", type(error).__name__), str(error).replace("\\n", " "), flush=True)
"""
"""Writes a row for each line that it is sent, and says its id when it was acknowledged."""

IDLE = """
import sys
from epochlake.jobs.cluster import open_cluster
from epochlake.metastore import configuration
from epochlake.placement.errors import EpochlakeError
with open_cluster(configuration.load(None, root=sys.argv[1])) as cluster:
    cluster.catch_up()
    print("waits", flush=True)
    sys.stdin.readline()
    for call in (
        lambda: cluster.write("air.flights", [{"id": 1, "note": "late", "n": 1, "address": None}]),
        lambda: cluster.scan("air.flights").read_all(),
    ):
        try:
            call()
            print("done", flush=True)
        except EpochlakeError as error:
            print("refused", str(error).replace("\\n", " "), flush=True)
"""

pytestmark = pytest.mark.skipif(not THOROUGH, reason="builds a wheel: EPOCHLAKE_TESTS_THOROUGH")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages of the release before are."""
    return packages_of(BEFORE, tmp_path_factory.mktemp("before"))


@pytest.fixture
def root(tmp_path: Path, before: Path) -> Path:
    """The root of a cluster of three nodes which the release before has made."""
    older = Release(tmp_path / "root", before)
    older.done("init", "--name", "lake")
    for number in (1, 2, 3):
        volume = str(tmp_path / f"disk{number}")
        older.done("node", "add", f"n{number}", "--datacenter", "dc1", "--rack", f"r{number}", "--volume", volume)
    older.done("coordinator", "run", "--until-idle")
    older.done("keyspace", "create", "air", "--replication", "dc1=3")
    columns = "id bigint, note string, n int, address struct<street:string>"
    older.done("table", "create", TABLE, "--column", columns, "--primary-key", "id", "--tablets", "2")
    return older.root


class Writer:
    """A process that writes rows; `told`: the ids that it was told of, `stopped`: what it was refused with."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.told: set[int] = set()
        self.stopped = ""

    def ask(self, rows: int) -> None:
        """Let it write so many rows, one after another."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n" * rows)
        self._process.stdin.flush()

    def hear(self, rows: int) -> None:
        """Wait until so many are acknowledged, or it has stopped."""
        assert self._process.stdout is not None
        for _ in range(rows):
            word = self._process.stdout.readline()
            assert word, self._process.stderr.read() if self._process.stderr else ""
            if word.startswith("stopped"):
                self.stopped = word
                return
            self.told.add(int(word))


@contextmanager
def writing(release: Release) -> Iterator[Writer]:
    """A writer that has begun; it ends as a program does."""
    process = release.program(WRITER)
    try:
        writer = Writer(process)
        writer.ask(1)
        writer.hear(1)
        yield writer
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


def rows(cluster: Cluster) -> dict[int, dict[str, object]]:
    found = cluster.scan(TABLE, consistency="ALL").read_all().to_pylist()
    by_id = {row["id"]: row for row in found}
    assert len(by_id) == len(found)
    return by_id


def test_a_process_of_an_earlier_release_writes_and_reads_while_columns_come_go_and_change(
    root: Path, before: Path
) -> None:
    older = Release(root, before)
    changes: list[dict[str, object]] = [
        {"add": ["c int"]},
        {"rename": {"note": "text"}},
        {"widen": {"n": "bigint"}},
        # The name of before, for another column: what the older process calls `note` is the text.
        {"add": ["note string"]},
    ]
    with open_cluster(configuration.load(None, root=str(root))) as cluster:
        with writing(older) as writer:
            for change in changes:
                writer.ask(6)
                writer.hear(2)
                administration.alter_table(cluster, TABLE, **change)  # type: ignore[arg-type]
                writer.hear(4)
            assert not writer.stopped
            found = rows(cluster)
            assert found.keys() == writer.told == set(range(25))
            for key, row in found.items():
                assert row == {
                    "id": key,
                    "text": f"of {key}",
                    "n": 7,
                    "address": {"street": "Main"},
                    "c": None,
                    "note": None,
                }
            # A process of the older release that begins now reads the same.
            read = older.done("query", TABLE, "--limit", "0")
            assert isinstance(read, list)
            assert {row["id"]: row for row in read} == found
            writer.ask(100)
            administration.alter_table(cluster, TABLE, drop=["n"])
            writer.hear(100)
            assert "schema-changed" in writer.stopped, writer.stopped
        found = rows(cluster)
        assert found.keys() >= writer.told
        assert {tuple(row) for row in found.values()} == {("id", "text", "address", "c", "note")}
        assert {row["address"]["street"] for row in found.values()} == {"Main"}  # type: ignore[index]
    assert older.run("log", "verify").returncode == 0


def test_what_an_earlier_release_does_not_understand_waits_for_its_processes_and_loses_nothing(
    root: Path, before: Path
) -> None:
    older = Release(root, before)
    changes = [{"add": ["address.zip string"]}, {"add": ["size int generated always as (length(note))"]}]
    idle = older.program(IDLE)
    try:
        assert idle.stdin is not None
        assert idle.stdout is not None
        with open_cluster(configuration.load(None, root=str(root))) as cluster:
            with writing(older) as writer:
                for change in changes:
                    with pytest.raises(Rejected) as refused:
                        administration.alter_table(cluster, TABLE, **change)
                    assert refused.value.code == Code.FEATURE_NOT_ENABLED
                    writer.ask(2)
                    writer.hear(2)
                with pytest.raises(Rejected) as refused:
                    administration.enable_features(cluster)
                assert refused.value.code == Code.FEATURE_LACKING
                writer.ask(1)
                writer.hear(1)
                assert not writer.stopped
            # A process that only looks on is announced nowhere, and does not hold the cluster up.
            assert idle.stdout.readline() == "waits\n"
            administration.enable_features(cluster)
            for change in changes:
                administration.alter_table(cluster, TABLE, **change)
            idle.stdin.write("\n")
            idle.stdin.flush()
            said = [idle.stdout.readline() for _ in range(2)]
            assert all(one.startswith("refused") and NOT_SUPPORTED in one for one in said), said
            refused_command = older.run("query", TABLE)
            error = json.loads(refused_command.stderr[refused_command.stderr.index("{") :])["error"]
            assert NOT_SUPPORTED in error["message"]
            assert "Traceback" not in refused_command.stderr
            found = rows(cluster)
            assert found.keys() == writer.told == set(range(6))
            for key, row in found.items():
                address = {"street": "Main", "zip": None}
                assert row == {"id": key, "note": f"of {key}", "n": 7, "address": address, "size": None}
    finally:
        idle.kill()
        idle.wait()
