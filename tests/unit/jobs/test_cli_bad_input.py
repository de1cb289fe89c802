"""Bad input: one clear error line, the right exit code, and nothing changed."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.administration import add_node
from epochlake.jobs.cli.commands import cluster
from epochlake.jobs.cli.main import main
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.errors import Rejected
from epochlake.metastore.log.delta import create_log_table
from epochlake.metastore.metastore import init_cluster

from tests.support.clusters import begin
from tests.support.command_line import COLUMNS, CommandLine
from tests.support.failures import no_room_to_write
from tests.support.slices import sliced
from tests.support.storages import STORAGE

CREATE = ["table", "create", "air.t", "--column"]
ADD = ["node", "add", "n4", "--datacenter", "dc1", "--rack", "r1", "--volume"]

# What is asked, the exit code, and words that the message must have.
BAD: dict[str, tuple[list[str], int, list[str]]] = {
    "no such command": (["statsu"], 2, ["statsu", "status"]),
    "missing option": (["node", "add", "n4"], 2, ["--datacenter"]),
    "unknown option": (["status", "--fast"], 2, ["--fast"]),
    "no number": (["status", "--at", "now"], 2, ["--at", "integer"]),
    "unknown output": (["status", "--output", "xml"], 2, ["xml"]),
    "unknown table": (["table", "show", "air.no"], 3, ["air.no"]),
    "unknown table placed": (["placement", "show", "air.no"], 3, ["air.no"]),
    "unknown table dropped": (["table", "drop", "air.no"], 3, ["air.no"]),
    "unknown keyspace": (["table", "create", "no.t", "--column", COLUMNS, "--primary-key", "id"], 3, ["'no'", "air"]),
    "no keyspace": (["table", "create", "t", "--column", COLUMNS, "--primary-key", "id"], 2, ["keyspace.table"]),
    "unknown column": ([*CREATE, COLUMNS, "--primary-key", "x"], 2, ["'x'"]),
    "unknown type": ([*CREATE, "id bigin", "--primary-key", "id"], 2, ["bigin", "bigint"]),
    "torn type": ([*CREATE, "id bigint, a array<int", "--primary-key", "id"], 2, ["array<int"]),
    "column without type": ([*CREATE, "id", "--primary-key", "id"], 2, ["name and type"]),
    "column twice": ([*CREATE, "id bigint, ID int", "--primary-key", "id"], 2, ["'ID'"]),
    "reserved column": ([*CREATE, "id bigint, _x int", "--primary-key", "id"], 3, ["'_x'"]),
    "null key": ([*CREATE, "id bigint null", "--primary-key", "id"], 2, ["'id'", "null"]),
    "key of floats": ([*CREATE, "id double", "--primary-key", "id"], 3, ["double"]),
    "three tablets": ([*CREATE, COLUMNS, "--primary-key", "id", "--tablets", "3"], 2, ["3"]),
    "duplicate node": (["node", "add", "n1", "--datacenter", "dc1", "--rack", "r1", "--volume", "x"], 3, ["'n1'"]),
    "bad node name": (["node", "add", "n 1", "--datacenter", "dc1", "--rack", "r1", "--volume", "x"], 3, ["'n 1'"]),
    "volume of a node": ([*ADD, "volumes/n1"], 2, ["volumes/n1", "n1/d1"]),
    "volume twice": ([*ADD, "x", "--volume", "x"], 2, ["twice"]),
    "volume of no size": ([*ADD, "x,big"], 2, ["'big'"]),
    "volume as a pattern": ([*ADD, "x*"], 2, ["*"]),
    "empty request id": (["balance", "pause", "--request-id", ""], 2, ["''", "not empty"]),
    "empty request id of a dry run": (["balance", "pause", "--request-id", "", "--dry-run"], 2, ["''"]),
    "endless timeout": (["balance", "pause", "--timeout", "inf"], 2, ["inf", "seconds"]),
    "timeout that is no number": (["balance", "pause", "--timeout", "nan"], 2, ["--timeout"]),
    "unknown node": (["node", "decommission", "n9"], 3, ["'n9'", "n1"]),
    "unknown node replaced": (["node", "replace", "n9", "n4", "--volume", "x"], 3, ["'n9'"]),
    "too few nodes": (["node", "decommission", "n1"], 3, ["n1", "3 replicas"]),
    "unknown request": (["node", "cancel", "no-such"], 3, ["no-such"]),
    "too many replicas": (["keyspace", "create", "k", "--replication", "dc1=4"], 3, ["4 replicas", "3"]),
    "unknown datacenter": (["keyspace", "create", "k", "--replication", "dc9=1"], 3, ["dc9"]),
    "unreadable replication": (["keyspace", "create", "k", "--replication", "three"], 2, ["three"]),
    "keyspace exists": (["keyspace", "create", "air", "--replication", "dc1=1"], 3, ["air"]),
    "future epoch": (["status", "--at", "999"], 2, ["999"]),
    "an epoch beyond 64 bits": (["status", "--at", str(2**63)], 2, [str(2**63), "from 1 to"]),
    "an epoch beyond 64 bits shown": (["log", "show", str(2**64)], 2, [str(2**64), "from 1 to"]),
    "an epoch beyond 64 bits compared": (["log", "diff", "1", str(2**64)], 2, [str(2**64), "from 1 to"]),
    "volume of no end": ([*ADD, "x,9999PB"], 2, ["9999PB", "9.22 EB"]),
    "no weight": (["node", "set", "n1", "--weight", "nan"], 2, ["nan"]),
    "boundless weight": (["node", "set", "n1", "--weight", "inf"], 2, ["inf"]),
    "tablets of no end": (["table", "alter", "air.flights", "--target-size", "9999PB"], 2, ["9999PB", "9.22 EB"]),
    "future epoch shown": (["log", "show", "999"], 2, ["999"]),
    "future epoch compared": (["log", "diff", "1", "999"], 2, ["999"]),
    "empty range": (["log", "list", "--first", "5", "--last", "2"], 2, ["5", "2"]),
    "unknown event": (["log", "list", "--event", "Nothing"], 2, ["Nothing", "RegisterNode"]),
    "nothing to resume": (["changes", "resume"], 3, ["not paused"]),
    "cluster exists": (["init"], 3, ["already"]),
    "no such file": (["placement", "simulate", "no.json"], 2, ["no.json"]),
    "no zookeeper for vacuum": (["vacuum"], 75, ["ZooKeeper"]),
    "no zookeeper for pipelines": (["pipeline", "list"], 75, ["ZooKeeper"]),
    "a duration of no end": (["vacuum", "--older-than", "9" * 400 + "d"], 2, ["longer than a thousand years"]),
    "no duration": (["vacuum", "--older-than", "soon"], 2, ["soon"]),
}


@sliced(at_least=25)
@pytest.mark.parametrize(("words", "code", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_clear_error_and_changes_nothing(
    unchanged: CommandLine, words: list[str], code: int, said: list[str]
) -> None:
    before = unchanged.log()
    text = unchanged.text(*words)
    assert text.code == code, text.err
    assert [word for word in said if word not in text.error_text] == []
    if words[-1] != "xml":
        structured = unchanged.json(*words)
        assert (structured.code, structured.error["exit_code"]) == (code, code)
        assert set(structured.error) <= {"type", "message", "exit_code", "code", "request_id", "hint"}
    assert unchanged.log() == before


KEYS: dict[str, tuple[list[str], int, str]] = {
    "no row": ([], 2, "key"),
    "token and tablet": (["--token", "1", "--tablet", "1"], 2, "only one"),
    "unknown key column": (["--key", "x=1"], 2, "id bigint"),
    "missing value": (["--key", "id"], 2, "COLUMN=VALUE"),
    "wrong type": (["--key", "id=one"], 2, "'one'"),
    "tablet too high": (["--tablet", "16"], 2, "0 to 15"),
    "no token": (["--token", str(2**63)], 2, "tokens are"),
}


@pytest.mark.parametrize(("words", "code", "said"), KEYS.values(), ids=KEYS)
def test_a_row_that_cannot_be_looked_up_is_one_clear_error(
    unchanged: CommandLine, words: list[str], code: int, said: str
) -> None:
    result = unchanged.text("placement", "explain", "air.flights", *words)
    assert result.code == code
    assert said in result.error_text


def test_an_argument_that_is_no_text_is_one_clear_error(
    unchanged: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["keyspace", "drop", "\udcff"], ["--root", "/tmp/\udcff", "status"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "is no text in UTF-8" in said
        assert "unexpected" not in said


def test_a_name_that_is_no_text_and_comes_from_elsewhere_is_one_clear_error_in_every_command(
    empty: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / os.fsdecode(b"of\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    for words in (["init"], ["--root", "here", "init"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "of\\udcff" in said
        assert "is no text in UTF-8" in said
        assert "unexpected" not in said
    assert not list(folder.iterdir())
    monkeypatch.setattr("epochlake.jobs.cli.main._run", lambda *_: "of\udcff".encode())
    assert main(["status"]) == 1
    said = capsys.readouterr().err
    assert "'of\\udcff' is no text in UTF-8" in said
    assert "unexpected" not in said


def test_a_volume_below_a_directory_whose_name_is_no_text_is_refused(
    unchanged: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"of\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    before = unchanged.log()
    result = unchanged.text("node", "add", "n4", "--datacenter", "dc1", "--rack", "r1", "--volume", "d1=v")
    assert "which is no text in UTF-8" in result.error_text
    assert "unexpected" not in result.error_text
    assert unchanged.log() == before


def test_a_root_without_a_cluster_says_to_run_init(empty: CommandLine) -> None:
    for words in (["status"], ["log", "list"], ["log", "verify"], ["node", "list"]):
        result = empty.text(*words)
        assert result.code == 1
        assert "init" in result.error_text
    assert not empty.root.exists()


def test_a_log_without_an_epoch_is_begun_by_running_init_again(empty: CommandLine) -> None:
    create_log_table(STORAGE, str(empty.root / "log"))
    result = empty.text("status")
    assert (result.code, "init" in result.error_text) == (1, True)
    assert empty.done("init")["epoch"] == 1


def test_a_half_written_root_is_one_clear_error(grown: CommandLine) -> None:
    newest = max((grown.root / "log" / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:40])
    for words in (["status"], ["balance", "pause"], ["log", "list"]):
        result = grown.text(*words)
        assert result.code in (1, 75)
        assert str(grown.root / "log") in result.error_text


def test_a_lost_data_file_is_one_clear_error(grown: CommandLine) -> None:
    before = len(list((grown.root / "log" / "_delta_log").iterdir()))
    max((grown.root / "log").glob("*.parquet"), key=lambda path: path.stat().st_mtime).unlink()
    result = grown.text("balance", "pause")
    assert result.code in (1, 75)
    assert str(grown.root / "log") in result.error_text
    assert len(list((grown.root / "log" / "_delta_log").iterdir())) == before


def test_an_altered_entry_stops_every_command_but_the_looking_ones(grown: CommandLine) -> None:
    file = min((grown.root / "log").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    rows = pq.read_table(file)
    position = rows.schema.get_field_index("reason")
    altered = rows.set_column(position, rows.schema.field(position), pa.array(["forged"] * len(rows)))
    pq.write_table(altered, file)
    stopped = grown.text("balance", "pause")
    assert (stopped.code, "epoch 1" in stopped.error_text) == (4, True)
    verified = grown.json("log", "verify")
    assert verified.code == 4
    assert verified.json["findings"][0]["where"] == "epoch 1"
    listed = grown.json("log", "list")
    assert listed.code == 4, "what can be read is listed, and it is no success"
    assert listed.json[0]["reason"] == "forged"
    assert json.loads(listed.err)["error"]["type"] == "HashMismatch"


def test_a_root_that_is_a_file_is_one_clear_error(empty: CommandLine) -> None:
    empty.root.write_text("not a directory")
    for words in (["init"], ["status"]):
        result = empty.text(*words)
        assert result.code in (1, 75)
        assert str(empty.root) in result.error_text


def test_a_root_where_no_directory_can_ever_be_made_is_not_worth_retrying(empty: CommandLine, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    said = {
        str(link): f"{link} is a symbolic link to {tmp_path / 'nowhere'}, which is not there",
        str(link / "below"): f"{link} is a symbolic link",
        "/proc/nope": "the file system of /proc lets nobody make directories there",
        "file://rel/lake": "names a machine, 'rel'",
    }
    for root, words in said.items():
        result = empty.text("--root", root, "init")
        assert (result.code, words in result.error_text) == (1, True), result.err
        assert empty.text("--root", root, "status").code == 1
    (tmp_path / "nowhere").mkdir()
    assert empty.text("--root", str(link), "init").code == 0


def test_a_volume_where_no_directory_can_ever_be_made_is_not_worth_retrying(grown: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("link", "/proc/nope", "file://rel/disk"):
        assert grown.text(*ADD, f"{tmp_path / place if place == 'link' else place},1GB").code in (1, 2)


def test_checking_a_cluster_whose_log_is_damaged_ends_with_4(grown: CommandLine) -> None:
    newest = max((grown.root / "log" / "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    assert grown.text("status").code == 1
    for words in (["status", "--check"], ["status", "--check", "--output", "json"]):
        result = grown.text(*words)
        assert (result.code, "torn after epoch" in result.err, "log heal" in result.err) == (4, True, True)
    assert grown.text("log", "heal").code == 0
    assert grown.text("status", "--check").code == 0


def test_a_log_that_has_gone_is_no_more_worth_retrying_for_healing_than_for_others(
    grown: CommandLine, tmp_path: Path
) -> None:
    looked = (["status"], ["log", "heal"], ["log", "heal", "--dry-run"], ["log", "accept-loss"])
    for number, gone in enumerate((grown.root / "log" / "_delta_log", grown.root / "log", grown.root)):
        gone.rename(tmp_path / f"away{number}")
        results = [grown.text(*words) for words in looked]
        assert {result.code for result in results} == {1}, results
        assert len({result.error_text for result in results}) == 1


def test_a_root_of_another_cluster_is_refused(grown: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHLAKE__CLUSTER__NAME", "mine")
    before = grown.log()
    for words in (["status"], ["balance", "pause"]):
        result = grown.text(*words)
        assert (result.code, "'mine'" in result.error_text) == (1, True)
    assert grown.log() == before


def test_a_cluster_is_not_begun_under_another_name_than_the_configured_one(
    empty: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHLAKE__CLUSTER__NAME", "mine")
    result = empty.text("init", "--name", "other")
    assert (result.code, "'mine'" in result.error_text) == (2, True)
    assert not empty.root.exists()


def test_a_volume_of_another_cluster_is_refused(grown: CommandLine, tmp_path: Path) -> None:
    add_node(begin(tmp_path / "other"), "n1", "dc1", "r1", [("d1", str(tmp_path / "disk"), 1)])
    before = grown.log()
    result = grown.text(*ADD, tmp_path / "disk")
    assert (result.code, "cannot become volume" in result.error_text) == (1, True)
    assert grown.log() == before


CONFIGURATIONS: dict[str, tuple[str, list[str]]] = {
    "misspelt key": ("[log]\ncompact_evry = 3\n", ["compact_evry", "did you mean compact_every"]),
    "misspelt section": ("[zokeeper]\nconnect = 'a:1'\n", ["zokeeper", "did you mean [zookeeper]"]),
    "wrong type": ("[log]\ncompact_every = 'often'\n", ["compact_every", "whole number"]),
    "not TOML": ("[log\n", ["TOML"]),
}


@pytest.mark.parametrize(("content", "said"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_that_cannot_be_meant_is_one_clear_error(
    unchanged: CommandLine, tmp_path: Path, content: str, said: list[str]
) -> None:
    (tmp_path / "my.toml").write_text(content)
    before = unchanged.log()
    result = unchanged.text("--conf", tmp_path / "my.toml", "balance", "pause")
    assert result.code == 2
    assert [word for word in said if word not in result.error_text] == []
    assert unchanged.log() == before


def test_of_two_inits_at_once_one_begins_the_cluster_and_the_other_is_rejected(empty: CommandLine) -> None:
    outcomes: list[Committed | BaseException] = []

    def attempt() -> None:
        try:
            outcomes.append(init_cluster(Configuration(root=str(empty.root))))
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begun = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
    rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    assert (len(begun), len(rejected)) == (1, 3), outcomes
    assert {error.code for error in rejected} == {"already-initialised"}
    assert len(empty.log()) == 1


@pytest.mark.parametrize(
    "words",
    [["balance", "pause"], [*CREATE, COLUMNS, "--primary-key", "id"], [*ADD, "x,1GB"]],
    ids=["commit", "table", "node"],
)
def test_a_full_disk_is_one_clear_error(grown: CommandLine, words: list[str]) -> None:
    before = grown.log()
    with no_room_to_write():
        result = grown.text(*words)
    assert result.code in (1, 75)
    assert result.error_text
    assert grown.log() == before
    assert grown.text(*words).code == 0


def test_a_full_disk_lets_no_cluster_begin_and_does_not_stand_in_its_way_later(empty: CommandLine) -> None:
    with no_room_to_write():
        result = empty.text("init")
    assert result.code in (1, 75)
    assert str(empty.root) in result.error_text
    assert empty.done("init")["epoch"] == 1


def test_an_unexpected_error_is_one_line_and_a_stack_trace_only_when_asked_for(
    unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cluster, "status_of", broken)
    result = unchanged.text("status")
    assert (result.code, "a defect" in result.error_text) == (1, True)
    assert "Traceback" in unchanged.text("status", "--verbose").err
