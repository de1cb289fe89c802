"""The embedded ZooKeeper, used by real processes that come, go and are killed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.embedded import zookeeper as embedded
from epochlake.metastore.coordination.embedded.files import files_of, is_serving, is_supervised, read_endpoint
from epochlake.metastore.coordination.embedded.jars import zookeeper_jars
from epochlake.metastore.coordination.embedded.zookeeper import EmbeddedZooKeeper, embedded_zookeeper
from epochlake.metastore.coordination.head import Head, publish_head, read_head
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable, StorageUnavailable
from epochlake.metastore.preflight import JavaUnsuitable
from epochlake.metastore.storage.failures import StorageMisconfigured

LINGER = 0.3

PROGRAM = """
import sys
from pathlib import Path
from epochlake.metastore.coordination.embedded.zookeeper import embedded_zookeeper
with embedded_zookeeper(Path(sys.argv[1]), float(sys.argv[2])) as connect:
    print(connect, flush=True)
    sys.stdin.read()
"""


class User:
    """A process that uses the server of `root` until it is told to go, or is killed."""

    def __init__(self, root: Path, linger: float = LINGER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(root), str(linger)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def connect_string(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        """End it; its pipes have to close with it, whatever it started."""
        _, errors = self.process.communicate("", timeout=10)
        assert (self.process.returncode, errors) == (0, "")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.killpg(self.process.pid, number)
        self.process.communicate(timeout=10)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root whose server has to be gone, by itself, after the test."""
    yield tmp_path
    eventually(lambda: is_gone(tmp_path), 60)


def eventually(what: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.02)


def java_process(root: Path) -> int | None:
    try:
        return int(files_of(root).java_process.read_text())
    except FileNotFoundError:
        return None


def supervisor_process(root: Path) -> int:
    """The parent of Java."""
    return int(Path(f"/proc/{java_process(root)}/stat").read_text().rpartition(")")[2].split()[1])


def takes(squatter: socket.socket, port: int) -> bool:
    """Listen on a port of loopback, which nobody must use now; whether that worked."""
    try:
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
    except OSError:
        return False
    return True


def is_up(root: Path) -> bool:
    endpoint = read_endpoint(files_of(root))
    return endpoint is not None and is_serving(*endpoint, files_of(root).data)


def is_gone(root: Path) -> bool:
    files = files_of(root)
    if not files.directory.exists():
        return True
    return not is_supervised(files) and read_endpoint(files) is None and java_process(root) is None


def test_processes_that_start_at_once_share_one_server_which_stops_after_the_last(root: Path) -> None:
    users = [User(root) for _ in range(4)]
    connect_strings = {user.connect_string() for user in users}
    assert len(connect_strings) == 1
    java = java_process(root)
    with Coordination(connect_strings.pop(), "/shared") as coordination:
        for user in users[:3]:
            user.go()
            time.sleep(2 * LINGER)
            assert publish_head(coordination, Head(user.process.pid, "", "")) in (True, False)
    assert java_process(root) == java
    users[3].go()
    eventually(lambda: is_gone(root))
    assert not Path(f"/proc/{java}").exists()


def test_what_was_stored_is_there_at_the_next_start_on_the_same_port(root: Path) -> None:
    with embedded_zookeeper(root, 0) as first, Coordination(first, "/x") as coordination:
        publish_head(coordination, Head(5, "s", "h"))
    eventually(lambda: is_gone(root))
    with embedded_zookeeper(root, 0) as second, Coordination(second, "/x") as coordination:
        assert read_head(coordination) == Head(5, "s", "h")
    assert second == first


def test_a_root_may_have_any_name(tmp_path: Path) -> None:
    root = tmp_path / "ünï 名前 🚀 \\u0041 =#:!"
    root.mkdir()
    with embedded_zookeeper(root, 0) as first, Coordination(first, "/x") as coordination:
        publish_head(coordination, Head(5, "s", "h"))
    eventually(lambda: is_gone(root))
    assert [path.name for path in tmp_path.iterdir()] == [root.name], "nothing lies beside it"


def test_a_user_that_comes_while_the_server_lingers_finds_it_running(root: Path) -> None:
    with embedded_zookeeper(root, 5.0):
        java = java_process(root)
    for _ in range(3):
        time.sleep(2)  # longer together than it lingers
        with embedded_zookeeper(root, 5.0):
            assert java_process(root) == java


def test_users_that_come_while_the_server_stops_get_one_that_serves(root: Path) -> None:
    def come_and_go(number: int) -> None:
        for turn in range(3):
            with embedded_zookeeper(root, 0) as connect, Coordination(connect, "/x", connect_timeout=5) as coordination:
                publish_head(coordination, Head(10 * turn + number, "", ""))
            time.sleep(0.03 * number)

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(come_and_go, number) for number in range(3)]:
            future.result()


def test_a_killed_user_neither_stops_the_server_nor_keeps_it(root: Path) -> None:
    starter, other = User(root), User(root)
    assert starter.connect_string() == other.connect_string()
    starter.kill()
    time.sleep(3 * LINGER)
    assert is_up(root)
    other.kill()
    eventually(lambda: is_gone(root))


def test_an_interrupt_at_the_terminal_of_the_starter_leaves_the_server_to_the_others(root: Path) -> None:
    starter = User(root)
    starter.connect_string()
    with embedded_zookeeper(root, LINGER):
        starter.kill(signal.SIGINT)
        time.sleep(3 * LINGER)
        assert is_up(root)


@pytest.mark.parametrize("victims", ["java", "supervisor", "both"])
def test_a_killed_server_comes_back_for_its_users(root: Path, victims: str) -> None:
    with embedded_zookeeper(root, LINGER) as connect, Coordination(connect, "/x") as coordination:
        coordination.client.create(coordination.path("mine"), b"", ephemeral=True)
        session, java = coordination.session_id, java_process(root)
        assert java is not None
        processes = {"java": [java], "supervisor": [supervisor_process(root)]}
        for process in processes.get(victims, processes["supervisor"] + processes["java"]):
            os.kill(process, signal.SIGKILL)
        eventually(lambda: not coordination.connected)
        eventually(lambda: coordination.connected and is_up(root))
        assert coordination.owner(coordination.path("mine")) == session == coordination.session_id
        assert java_process(root) != java
        # Who comes now uses the same one.
        with embedded_zookeeper(root, LINGER) as again:
            assert again == connect


def test_unreadable_data_is_set_aside_because_the_log_can_rebuild_it(root: Path) -> None:
    with embedded_zookeeper(root, 0) as connect, Coordination(connect, "/x") as coordination:
        publish_head(coordination, Head(5, "s", "h"))
    eventually(lambda: is_gone(root))
    for snapshot in files_of(root).data.rglob("snapshot.*"):
        snapshot.write_bytes(b"not a snapshot")
    with embedded_zookeeper(root, 0) as connect, Coordination(connect, "/x") as coordination:
        assert read_head(coordination) is None
    assert len(list(files_of(root).directory.glob("data.unreadable-*"))) == 1


def test_it_listens_on_loopback_only(root: Path) -> None:
    with embedded_zookeeper(root, 0) as connect:
        port = int(connect.rpartition(":")[2])
        tables = [Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text()]
        rows = [row.split() for table in tables for row in table.splitlines()[1:]]
        listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]


def test_several_uses_in_one_process_count_each(root: Path) -> None:
    one, two = EmbeddedZooKeeper(root, 0), EmbeddedZooKeeper(root, 0)
    assert one.start() == two.start()
    one.release()
    one.release()
    time.sleep(0.3)
    assert is_up(root)
    two.release()


def test_a_use_that_is_started_again_counts_once(root: Path) -> None:
    use, before = EmbeddedZooKeeper(root, 0), set(threading.enumerate())
    assert use.start() == use.start()
    watching = [thread.name for thread in set(threading.enumerate()) - before]
    use.release()
    assert watching.count("epochlake-embedded-zookeeper") == 1
    eventually(lambda: is_gone(root))


@pytest.mark.parametrize("elsewhere", ["s3://bucket/root", Path("s3://bucket/root"), "abfss://c@a/root"])
def test_a_root_that_is_not_local_is_a_configuration_error(elsewhere: Path | str) -> None:
    with pytest.raises(ConfigurationError, match="not a local directory"), embedded_zookeeper(elsewhere):
        pass


def test_a_file_uri_is_a_local_root(root: Path) -> None:
    with embedded_zookeeper(root.as_uri(), 0):
        assert is_up(root)


def test_a_root_that_cannot_be_written_is_named() -> None:
    with pytest.raises(StorageUnavailable, match="/proc/nowhere"), embedded_zookeeper(Path("/proc/nowhere")):
        pass


def test_without_java_one_line_says_so_and_nothing_is_left_running(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(root / "no-java"))
    with pytest.raises(JavaUnsuitable) as raised, embedded_zookeeper(root):
        pass
    assert len(str(raised.value).splitlines()) == 1


def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log(root: Path) -> None:
    (root / "bin").mkdir()
    java = root / "bin" / "java"
    java.write_text("#!/bin/sh\n[ $1 = -version ] && echo 'version \"17.0.1\"' || { echo no room; exit 9; }\n")
    java.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(root))
        with pytest.raises(CoordinationUnavailable, match=r"(?s)java ended with 9.*no room"), embedded_zookeeper(root):
            pass


def pyspark_from_a_zip() -> dict[str, str]:
    """The environment of a driver that `spark-submit` starts: PySpark comes from a zip, which holds no jars."""
    home = zookeeper_jars().parent
    zips = [str(path) for path in (home / "python" / "lib").glob("*.zip")]
    return {**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": os.pathsep.join(zips)}


def test_it_starts_where_pyspark_comes_from_a_zip_and_a_module_beside_the_script_has_a_name_of_python(
    root: Path,
) -> None:
    (root / "types.py").write_text("raise SystemExit('a module of the user')\n")
    (root / "job.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(root / "job.py"), str(root), "0"],
        env=pyspark_from_a_zip(),
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("127.0.0.1:")


def test_what_has_nothing_to_do_with_the_data_leaves_the_data_alone(root: Path) -> None:
    with embedded_zookeeper(root, 0) as connect, Coordination(connect, "/x") as coordination:
        publish_head(coordination, Head(5, "s", "h"))
    eventually(lambda: is_gone(root))
    (root / "jars").mkdir()
    (root / "jars" / "zookeeper-0.jar").write_bytes(b"no jar")
    for broken in ({"--jars": root / "jars"}, {"--java": "/bin/false"}):
        options = {"--linger": 0, **broken}
        words = [str(word) for pair in options.items() for word in pair]
        module = "epochlake.metastore.coordination.embedded.server"
        subprocess.run([sys.executable, "-m", module, str(root), *words], check=True)
        eventually(lambda: not is_supervised(files_of(root)))
        assert "java ended with 1" in files_of(root).failure.read_text()
    with embedded_zookeeper(root, 0) as connect, Coordination(connect, "/x") as coordination:
        assert read_head(coordination) == Head(5, "s", "h")
    assert not list(files_of(root).directory.glob("data.*"))


def test_a_root_that_is_away_is_not_made_anew(tmp_path: Path) -> None:
    """What is made in its place would be in the way when it comes back."""
    with pytest.raises(StorageUnavailable, match="the root is not there"), embedded_zookeeper(tmp_path / "away", 0):
        pass
    assert not (tmp_path / "away").exists()


def test_a_root_that_goes_away_while_the_server_is_started_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()

    def unmounted(*_: object) -> bool:
        root.rename(tmp_path / "away")
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(embedded, "is_supervised", unmounted)
    with pytest.raises(CoordinationUnavailable, match="is the root still mounted"), embedded_zookeeper(root, 0):
        pass
    assert not root.exists()


def test_a_copy_of_the_root_that_comes_in_its_place_has_a_server_of_its_own_which_live_users_find(root: Path) -> None:
    root, backup, away = (root / name for name in ("lake", "backup", "away"))
    root.mkdir()
    with embedded_zookeeper(root, 0) as connect, Coordination(connect, "/x") as coordination:
        publish_head(coordination, Head(5, "s", "h"))
    eventually(lambda: is_gone(root))
    shutil.copytree(root, backup)
    use = EmbeddedZooKeeper(root, LINGER, serves_at=lambda connect: live.moved_to(connect))
    with Coordination(use.start(), "/x") as live:
        publish_head(live, Head(6, "s", "h"))
        of_the_old_one = java_process(root)
        root.rename(away)
        backup.rename(root)
        started = time.monotonic()
        with embedded_zookeeper(root, LINGER) as connect, Coordination(connect, "/x") as other:
            assert time.monotonic() - started < 40
            assert read_head(other) == Head(5, "s", "h")
            eventually(lambda: not Path(f"/proc/{of_the_old_one}").exists())
            eventually(lambda: live.connected and live.connect_string == connect)
            assert live.call("read", lambda client: client.get_async("/x/head"), 60)[0] == msgspec.json.encode(
                Head(5, "s", "h")
            )
            time.sleep(4 * LINGER)
            assert is_up(root)  # the supervisor of the old copy took nothing away when it ended
        time.sleep(4 * LINGER)
        assert is_up(root)  # who was there before is a user of the copy
        use.release()
        eventually(lambda: is_gone(root), 30)
    assert java_process(away) in (None, of_the_old_one)


def test_a_root_that_is_away_for_a_moment_and_comes_back_keeps_its_server(root: Path) -> None:
    root, away = root / "lake", root / "away"
    root.mkdir()
    with embedded_zookeeper(root, LINGER) as connect, Coordination(connect, "/x") as coordination:
        java = java_process(root)
        root.rename(away)
        time.sleep(1)
        away.rename(root)
        publish_head(coordination, Head(5, "s", "h"), 60)
        with embedded_zookeeper(root, LINGER) as again:
            assert again == connect
        assert java_process(root) == java
    eventually(lambda: is_gone(root))


def test_live_users_are_told_when_the_port_was_taken_while_the_server_was_down(root: Path) -> None:
    use = EmbeddedZooKeeper(root, LINGER, serves_at=lambda connect: live.moved_to(connect))
    connect = use.start()
    with Coordination(connect, "/x") as live, socket.socket() as squatter:
        port = int(connect.rpartition(":")[2])
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for process in (supervisor_process(root), java_process(root)):
            os.kill(process, signal.SIGKILL)
        eventually(lambda: takes(squatter, port))
        eventually(lambda: live.connect_string != connect, 120)
        publish_head(live, Head(5, "s", "h"), 60)
        assert read_head(live, 60) == Head(5, "s", "h")
    use.release()


def test_a_root_of_somebody_else_is_not_worth_retrying(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(embedded, "open_lock", denied)
    with pytest.raises(StorageMisconfigured, match="Permission denied") as refused, embedded_zookeeper(root, 0):
        pass
    assert (refused.value.exit_code, refused.value.hint.partition(",")[0]) == (1, "Make the directory writable")
