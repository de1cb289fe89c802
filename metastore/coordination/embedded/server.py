"""The supervisor of an embedded ZooKeeper: a process of its own, for as long as anybody uses the server.

    python -m epochlake.metastore.coordination.embedded.server ROOT [--linger SECONDS] [--java PATH] [--jars DIRECTORY]

Users are counted by the operating system. Each holds a shared lock on one file, so an exclusive lock can
be had exactly when there are none, whether they closed, crashed or were killed. The supervisor stops the server while
it *holds* that exclusive lock: a user that comes at this moment waits for the lock and then starts a new server.

It belongs to no terminal (own session, so a Ctrl-C in a shell does not reach it) and keeps no pipe of its starter
open. Java dies with its supervisor (on Linux by the kernel's parent-death signal; elsewhere the next supervisor ends
it, known by its process id and its command line). When Java dies alone, it is started again on the same port and data.
Data that ZooKeeper cannot read any more is set aside: all of it can be rebuilt from the epoch log. That the data is at
fault is proved first: the same Java and jars serve an empty directory (docs/decisions/030-embedded-zookeeper.md).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from epochlake.metastore.coordination.embedded.files import (
    EmbeddedFiles,
    files_of,
    free_loopback_port,
    is_serving,
    lock_within,
    open_lock,
    try_lock,
    was_exchanged,
    write_endpoint,
)
from epochlake.metastore.coordination.embedded.jars import ZooKeeperMissing, zookeeper_jars

HOST = "127.0.0.1"
LINGER_SECONDS = 3.0

_POLL_SECONDS = 0.05
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_LARGEST_LOG_BYTES = 1_000_000
_LEAST_FREE_BYTES = 16 << 20
_QUICK_DEATHS_ALLOWED = 5
_QUICK_DEATH_SECONDS = 10.0

# Small and quick to start. `forceSync=no`: nothing in this ZooKeeper has to survive a power failure, because all of it
# can be rebuilt from the epoch log; a write then takes 0.3 ms instead of waiting for the disk.
_JAVA_OPTIONS = (
    "-Xms16m",
    "-Xmx192m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dfile.encoding=UTF-8",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",
    "-Dzookeeper.jmx.log4j.disable=true",
)


class ServerFailed(Exception):
    """The server cannot be started or kept up; the message says why.

    `exit_code`: what Java ended with, negative for a signal; None when it did not end by itself. `said`: what it wrote
    into its log from this start on.
    """

    def __init__(self, message: str, exit_code: int | None = None, said: str = "") -> None:
        super().__init__(f"{message}: {_cause(said)}" if said.strip() else message)
        self.exit_code = exit_code
        self.said = said


def configuration_of(data: Path, port: int) -> str:
    """A standalone server on loopback, without the admin server, with sessions from one second."""
    settings = {
        "dataDir": data,
        "clientPort": port,
        "clientPortAddress": HOST,
        "admin.enableServer": "false",
        "tickTime": 500,
        "minSessionTimeout": 1000,
        "maxSessionTimeout": 120_000,
        "maxClientCnxns": 0,
        "4lw.commands.whitelist": "conf,srvr,ruok,mntr",
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
    }
    return "".join(f"{key}={in_properties(str(value))}\n" for key, value in settings.items())


def in_properties(value: str) -> str:
    """A value as Java reads it from a file of properties: in Latin-1, with escapes for all that is not in ASCII."""
    units = value.encode("utf-16-be")
    codes = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(code) if 0x20 <= code < 0x7F and chr(code) != "\\" else f"\\u{code:04x}" for code in codes)


def java_command(java: str, options: tuple[str, ...], main_class: str, configuration: Path, jars: Path) -> list[str]:
    """The command that serves ZooKeeper from PySpark's jars."""
    return [java, *options, "-cp", f"{jars}/*", main_class, str(configuration)]


def die_with_parent() -> None:
    """In a child process, before it executes something: be killed when the parent dies. Does nothing off Linux."""
    with contextlib.suppress(OSError, AttributeError):
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


class Server:
    """The Java process of one root, and starting, watching and stopping it."""

    def __init__(self, files: EmbeddedFiles, java: str, jars: Path) -> None:
        self._files = files
        self._java = java
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._quick_deaths = 0
        self.port = 0

    def start(self) -> None:
        """Start it, on the port that it last had if that is free, and return when it serves."""
        _end_orphan(self._files)
        self.port = free_loopback_port(_last_port(self._files))
        try:
            self._run()
        except ServerFailed as error:
            log(f"first attempt: {error}")
            if "BindException" in error.said:
                self.port = free_loopback_port()
            elif self._is_data_at_fault(error):
                self._set_data_aside()
            else:
                raise
            self._run()
        write_endpoint(self._files, HOST, self.port)

    def keep_up(self) -> None:
        """Start it again, on the same port and data, if it died."""
        if self._process is None or self._process.poll() is None:
            return
        quick = time.monotonic() - self._started_at < _QUICK_DEATH_SECONDS
        self._quick_deaths = self._quick_deaths + 1 if quick else 0
        if self._quick_deaths > _QUICK_DEATHS_ALLOWED:
            raise ServerFailed(f"the server died {self._quick_deaths} times in a row", said=_since(self._files.log))
        log(f"the server ended with {self._process.returncode}; starting it again")
        self._run()

    def stop(self) -> None:
        """Stop it, by force if it does not go."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def end_now(self) -> None:
        """Kill it: what it stores from now on would go to somebody else's files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _run(self) -> None:
        files, logged = self._files, _size_of(self._files.log)
        self._started_at = time.monotonic()
        self._process = self._launched(files.configuration, files.data, self.port)
        files.java_process.write_text(str(self._process.pid))
        self._until_serving(self._process, files.data, self.port, logged)

    def _launched(self, configuration: Path, data: Path, port: int) -> subprocess.Popen[bytes]:
        configuration.write_text(configuration_of(data, port))
        command = java_command(
            self._java, _JAVA_OPTIONS, "org.apache.zookeeper.server.ZooKeeperServerMain", configuration, self._jars
        )
        # Java reads names of files by the locale.
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def _until_serving(self, process: subprocess.Popen[bytes], data: Path, port: int, logged: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not is_serving(HOST, port, data):
            if process.poll() is not None:
                said = _since(self._files.log, logged)
                raise ServerFailed(f"java ended with {process.returncode}", process.returncode, said)
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise ServerFailed(
                    f"it did not serve within {_START_SECONDS:g} s", said=_since(self._files.log, logged)
                )
            time.sleep(0.02)

    def _is_data_at_fault(self, error: ServerFailed) -> bool:
        """Whether the data made the server end: nothing else is in its way, and it serves an empty directory.

        A Java that does not start, jars that have gone, a signal, a slow machine, a full disk and files of somebody
        else say nothing about the data.
        """
        files = self._files
        if error.exit_code is None or error.exit_code <= 0 or not files.data.exists():
            return False
        if shutil.disk_usage(files.directory).free < _LEAST_FREE_BYTES or not _is_ours(files.data):
            return False
        trial, port, logged = files.directory / "trial", free_loopback_port(), _size_of(files.log)
        shutil.rmtree(trial, ignore_errors=True)
        trial.mkdir()
        process = self._launched(trial / "zoo.cfg", trial / "data", port)
        try:
            self._until_serving(process, trial / "data", port, logged)
        except ServerFailed as same:
            log(f"the data is not at fault, for an empty directory is not served either: {same}")
            return False
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(trial, ignore_errors=True)
        return True

    def _set_data_aside(self) -> None:
        aside = self._files.directory / f"data.unreadable-{int(time.time())}"
        log(f"the data cannot be read and is set aside as {aside.name}; the epoch log rebuilds it")
        self._files.data.replace(aside)


def supervise(files: EmbeddedFiles, java: str, jars: Path, linger_seconds: float) -> None:
    """Keep the server up while it is used, and `linger_seconds` longer; then stop it.

    When another copy of the root comes in the place of this one, the server ends at once: that copy has one of its own,
    and nothing of it is touched from here.
    """
    users, exchanged = open_lock(files.users), False
    stop_asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop_asked.append(number))
    server = Server(files, java, jars)
    try:
        server.start()
        idle_since: float | None = None
        last_user = 0
        while not stop_asked:
            exchanged = was_exchanged(users, files.users)
            if exchanged:
                server.end_now()
                log("another copy of the root has come in the place of this one: the server of this one has ended")
                return
            server.keep_up()
            if not try_lock(users, fcntl.LOCK_EX):
                idle_since = None
            else:
                # From here until the lock is given back nobody can come.
                newest_user = files.users.stat().st_mtime_ns
                now = time.monotonic()
                if idle_since is None or newest_user != last_user:
                    idle_since, last_user = now, newest_user
                if now - idle_since >= linger_seconds:
                    return
                fcntl.flock(users, fcntl.LOCK_UN)
            time.sleep(_POLL_SECONDS)
    finally:
        if not exchanged:
            files.endpoint.unlink(missing_ok=True)
        server.stop()
        if not exchanged:
            files.java_process.unlink(missing_ok=True)


def log(message: str) -> None:
    """Into the server's log, where standard output goes."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} supervisor {os.getpid()}: {message}", flush=True)


def _end_orphan(files: EmbeddedFiles) -> None:
    """End the Java process of a supervisor that was killed, if it still runs and really is the one of this root."""
    try:
        process_id = int(files.java_process.read_text())
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + _STOP_SECONDS
    while str(files.configuration) in _command_line(process_id) and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
        time.sleep(0.02)
    files.java_process.unlink(missing_ok=True)


def _last_port(files: EmbeddedFiles) -> int | None:
    """The port of the last server, which clients may still try to reach."""
    try:
        found = re.search(r"^clientPort=(\d+)$", files.configuration.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1])


def _command_line(process_id: int) -> str:
    process = Path(f"/proc/{process_id}/cmdline")
    if Path("/proc/self/cmdline").exists():
        try:
            return process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    asked = subprocess.run(["ps", "-p", str(process_id), "-o", "command="], capture_output=True, text=True)
    return asked.stdout


def _is_ours(directory: Path) -> bool:
    """Whether this process may read and write everything below a directory."""
    return all(os.access(path, os.R_OK | os.W_OK) for path in (directory, *directory.rglob("*")))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _since(path: Path, logged: int = 0) -> str:
    """What a log holds after its first `logged` bytes."""
    try:
        return path.read_bytes()[logged:].decode(errors="replace")
    except OSError:
        return ""


def _cause(said: str) -> str:
    """The line of what a server wrote that tells most: of its last error, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(Caused by: |Error: |[\w.$]+(Exception|Error)\b)", line)]
    return (errors or lines)[-1]


def _detach(files: EmbeddedFiles) -> None:
    """Leave the starter's session and its pipes; what is printed from now on goes to the server's log."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if files.log.exists() and files.log.stat().st_size > _LARGEST_LOG_BYTES:
        files.log.replace(files.log.with_suffix(".log.1"))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    journal = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nowhere, 0)
    os.dup2(journal, 1)
    os.dup2(journal, 2)
    os.chdir("/")


def main(argv: list[str]) -> int:
    """Start the supervisor in the background; returns as soon as it holds its lock. 0 also if there is one already."""
    parser = argparse.ArgumentParser(prog="embedded_server", description="Supervise the embedded ZooKeeper of a root.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--linger", type=float, default=LINGER_SECONDS)
    parser.add_argument("--java", default="java")
    parser.add_argument("--jars", type=Path, help="where Spark's jars are; else they are looked for")
    arguments = parser.parse_args(argv)
    files = files_of(arguments.root)
    files.directory.mkdir(exist_ok=True)
    supervisor = open_lock(files.supervisor)
    # A look whether there is a supervisor takes the lock for a moment: do not mistake it for one.
    if not lock_within(supervisor, fcntl.LOCK_EX, time.monotonic() + 0.2):
        return 0
    # Of a supervisor that was killed. The starter looks for new ones as soon as this process has ended.
    files.failure.unlink(missing_ok=True)
    files.endpoint.unlink(missing_ok=True)
    if os.fork() != 0:
        # The lock belongs to the child as well, and stays with it.
        os._exit(0)
    try:
        _detach(files)
        supervise(files, arguments.java, arguments.jars or zookeeper_jars(), arguments.linger)
    except (ServerFailed, ZooKeeperMissing, OSError) as error:
        log(str(error))
        files.failure.write_text(str(error))
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
