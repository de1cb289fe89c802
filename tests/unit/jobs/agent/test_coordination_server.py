"""A ZooKeeper server beside an agent: how it is started again, what is said of it, and that none is left running."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from epochlake.jobs.agent import coordination_server, server_process
from epochlake.jobs.agent.coordination_server import (
    DIRECTORY,
    FIRST_PAUSE_SECONDS,
    LOCK,
    LOG,
    LONGEST_PAUSE_SECONDS,
    STEADY_SECONDS,
    CoordinationServer,
    CoordinationServerSeen,
    ServerState,
    asked_for,
    next_pause,
)
from epochlake.jobs.agent.documents import AgentState, LogSeen, nodes_seen
from epochlake.jobs.agent.home import TAG, Home
from epochlake.jobs.agent.membership import Peer
from epochlake.jobs.agent.messages import PROTOCOL, Introduction, Seen, Tag
from epochlake.jobs.agent.metrics import metrics_text
from epochlake.jobs.agent.running import main
from epochlake.jobs.cli.text.agents import agent_shown
from epochlake.jobs.cli.text.agents import nodes_seen as nodes_table
from epochlake.metastore.coordination.ensemble import parse_server
from epochlake.metastore.coordination.server_files import STATIC
from epochlake.metastore.preflight import JavaUnsuitable
from epochlake.placement.errors import InvalidRequest
from rich.console import Console
from rich.text import Text

from tests.support.ports import free_ports

WRITTEN = "server.4=127.0.0.1:2888:3888:participant;127.0.0.1:2181"
SERVER = parse_server(WRITTEN)


def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, attempts: int = 1) -> CoordinationServer:
    """A server whose process is this program, tried so often."""
    pauses = [0.0] * (attempts - 1) + [600.0]
    (tmp_path / "scripted_server.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(coordination_server, "PROCESS", "scripted_server")
    monkeypatch.setattr(coordination_server, "LOOK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(coordination_server, "next_pause", lambda before, ran: pauses.pop(0))
    peer, vote, client = free_ports(3)
    server = parse_server(f"4=127.0.0.1:{peer}:{vote};127.0.0.1:{client}")
    return CoordinationServer(Home(tmp_path / "home"), server, None, None)


def until(server: CoordinationServer, what: Callable[[CoordinationServerSeen], bool]) -> CoordinationServerSeen:
    """Run a server until what is said of it is so; then it is cancelled, and nothing of it is left."""

    async def scene() -> CoordinationServerSeen:
        running = asyncio.ensure_future(server.run())
        while not what(seen := server.seen()):
            await asyncio.sleep(0.01)
        process = server._process
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert process is None or process.returncode is not None
        return seen

    return asyncio.run(asyncio.wait_for(scene(), 300))


def test_pauses_between_starts_grow_and_begin_anew_after_a_server_that_was_steady() -> None:
    pauses = [next_pause(0.0, 0.0)]
    while pauses[-1] < LONGEST_PAUSE_SECONDS:
        pauses.append(next_pause(pauses[-1], 1.0))
    assert pauses[0] == FIRST_PAUSE_SECONDS
    assert all(later == min(2 * before, LONGEST_PAUSE_SECONDS) for before, later in itertools.pairwise(pauses))
    assert next_pause(LONGEST_PAUSE_SECONDS, STEADY_SECONDS - 1) == LONGEST_PAUSE_SECONDS
    assert next_pause(LONGEST_PAUSE_SECONDS, STEADY_SECONDS) == FIRST_PAUSE_SECONDS


def is_waiting(seen: CoordinationServerSeen) -> bool:
    return seen.state is ServerState.WAITING


def test_a_server_that_dies_is_started_again_and_its_last_words_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "home" / DIRECTORY
    place.mkdir(parents=True)
    (place / LOG).write_text("of an earlier one\n")
    program = (
        f"open({str(place / LOG)!r}, 'a').write('java.net.BindException: in use\\n\\tat x\\n')\nraise SystemExit(3)"
    )
    server = scripted(tmp_path, monkeypatch, program, attempts=3)
    seen = until(server, lambda seen: seen.starts == 3 and seen.state is ServerState.WAITING)
    assert seen.reason == "it ended with 3: java.net.BindException: in use"
    assert seen.problem == f"its ZooKeeper server is waiting: {seen.reason}"
    (place / LOG).write_text("of an earlier one\n")
    silent = until(scripted(tmp_path, monkeypatch, "raise SystemExit(1)"), is_waiting)
    assert silent.reason == "it ended with 1"


def test_what_is_in_the_way_of_a_start_is_told_and_is_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = '{"reason": "there is no java", "hint": "Install one"}'
    seen = until(scripted(tmp_path, monkeypatch, f"print({said!r})"), lambda seen: seen.state is ServerState.WAITING)
    assert (seen.reason, seen.starts) == ("there is no java. Install one", 0)
    seen = until(scripted(tmp_path, monkeypatch, "print('{')"), lambda seen: seen.state is ServerState.WAITING)
    assert seen.reason.startswith("it says what cannot be understood")
    monkeypatch.setattr(coordination_server, "PREPARING_SECONDS", 0.0)
    late = scripted(tmp_path, monkeypatch, "import time\ntime.sleep(600)")
    assert until(late, lambda seen: bool(seen.reason)).reason == "it was not ready to be started within 0 s"


def test_a_server_is_told_of_which_cluster_its_agent_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the root there may be what another cluster has published."""
    program = "import json, sys\nprint(json.dumps({'reason': ' '.join(sys.argv[1:])}))"
    blank = until(scripted(tmp_path, monkeypatch, program), is_waiting)
    assert "--cluster" not in blank.reason
    home = Home(tmp_path / "home")
    home.write(TAG, Tag("lake", "c1"))
    member = until(scripted(tmp_path, monkeypatch, program), is_waiting)
    assert member.reason.endswith("--cluster c1. ") or member.reason.endswith("--cluster c1")
    (home.directory / f"{TAG}.json").write_bytes(b"rotten")
    damaged = until(scripted(tmp_path, monkeypatch, program), is_waiting)
    assert "is not what was written there" in damaged.reason
    assert damaged.starts == 0


def test_a_server_that_heeds_no_signal_is_gone_when_its_agent_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination_server, "STOP_SECONDS", 0.1)
    ready = tmp_path / "ready"
    program = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(ready)!r}, 'w').close()\nos.close(1)\ntime.sleep(600)"
    )
    server = scripted(tmp_path, monkeypatch, program)
    seen = until(server, lambda seen: seen.reason != "" and ready.exists())
    assert (seen.reason, seen.starts, seen.role) == ("it does not answer", 1, "")


def test_a_server_that_has_not_come_up_after_a_minute_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination_server, "STEADY_SECONDS", 1e9)
    program = "import os, time\nos.close(1)\ntime.sleep(600)"
    seen = until(scripted(tmp_path, monkeypatch, program), lambda seen: seen.reason != "")
    assert (seen.state, seen.problem) == (ServerState.STARTING, "")
    monkeypatch.setattr(coordination_server, "STEADY_SECONDS", 0.0)
    seen = until(scripted(tmp_path, monkeypatch, program), lambda seen: seen.problem != "")
    assert (seen.state, seen.problem) == (ServerState.SILENT, "its ZooKeeper server is silent: it does not answer")


def test_what_a_server_writes_while_it_runs_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination_server, "LARGEST_LOG_BYTES", 100)
    place = tmp_path / "home" / DIRECTORY
    place.mkdir(parents=True)
    program = (
        f"import os, time\nlog = os.open({str(place / LOG)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\nos.close(1)\n"
        "while True:\n    os.write(log, b'refused\\n' * 5)\n    time.sleep(0.01)"
    )
    aside = place / "server.log.1"
    until(scripted(tmp_path, monkeypatch, program), lambda seen: aside.exists() and aside.stat().st_size == 100)
    assert b"refused\n" in aside.read_bytes()


def test_a_log_is_made_small_also_where_there_is_no_room_to_put_it_aside(tmp_path: Path) -> None:
    log = tmp_path / LOG
    log.write_bytes(b"x" * (coordination_server.LARGEST_LOG_BYTES + 1))
    (tmp_path / f"{LOG}.1").mkdir()
    with pytest.raises(OSError, match="directory"):
        coordination_server.keep_small(log)
    assert log.stat().st_size == 0


def test_who_has_lost_its_agent_before_it_was_ready_becomes_no_server(tmp_path: Path) -> None:
    stranger = str(os.getppid() + 1)
    place = tmp_path / DIRECTORY
    assert server_process.main(["--directory", str(place), "--server", WRITTEN, "--agent", stranger]) == 0
    assert not place.exists()


def test_a_directory_in_which_a_server_runs_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    monkeypatch.setattr(server_process, "LOCK_SECONDS", 0.0)
    with pytest.raises(server_process.ServerRuns, match="an earlier server runs in"):
        server_process.locked(tmp_path)
    os.close(handle)
    server_process.locked(tmp_path)


def test_a_home_without_java_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_java() -> None:
        raise JavaUnsuitable("Epochlake needs Java 17 or 21, but there is no java", hint="Install one")

    monkeypatch.setattr(server_process, "require_java", no_java)
    words = ["--directory", str(tmp_path / DIRECTORY), "--server", WRITTEN, "--agent", str(os.getppid())]
    assert server_process.main([*words, "--root", str(tmp_path / "root")]) == 1
    assert '"reason":"Epochlake needs Java 17 or 21, but there is no java"' in capsys.readouterr().out
    assert not (tmp_path / DIRECTORY / STATIC).exists()


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("zk4", "is no server of a ZooKeeper ensemble"),
        ("4=zk4:2888:3888", "no address for clients"),
        ("4=zk4:2888:3888;;2182", "no address for clients without TLS"),
        ("400=zk4:2888:3888;2181", "400 is no number"),
    ],
)
def test_a_server_that_could_not_be_run_ends_the_agent_before_it_begins(
    tmp_path: Path, written: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        asked_for(written)
    assert main(["--home", str(tmp_path / "home"), "--name", "n1", "--coordination-server", written]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_what_a_server_says_is_in_the_metrics_and_who_runs_one_beside_the_nodes() -> None:
    seen = CoordinationServerSeen(WRITTEN, ServerState.FOLLOWER, "voter", "", 2)
    state = AgentState(
        "1",
        "n1",
        "h:1",
        None,
        PROTOCOL,
        "1",
        None,
        "",
        None,
        LogSeen(0, "", 0, "", "", None),
        (),
        (),
        coordination=seen,
    )
    text = metrics_text(state, [], {}, {})
    for said in ("serving 1\n", "votes 1\n", "starts_total 2\n"):
        assert f"epochlake_agent_coordination_server_{said}" in text
    [line] = [part.plain for part in agent_shown(state) if isinstance(part, Text) and "ZooKeeper" in part.plain]
    assert line == f"ZooKeeper {WRITTEN} is follower, voter"
    mine = Introduction("1", "n1", "h:1", None, PROTOCOL, "1", coordination_server=WRITTEN)
    other = Peer("2", "n2", "h:2", Seen.ALIVE, 0, 0, 0.0, coordination_server="server.5=x:1:2;3")
    shown = nodes_seen(None, mine, (other,), 1.0)
    console = Console(width=200)
    with console.capture() as printed:
        console.print(nodes_table(shown))
    assert "server.5" in printed.get()
    assert [(node.name, node.coordination_server) for node in shown] == [("n1", WRITTEN), ("n2", "server.5=x:1:2;3")]
