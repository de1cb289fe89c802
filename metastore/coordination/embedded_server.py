"""The supervisor of an embedded ZooKeeper: a process of its own, for as long as anybody uses the server.

    python -m epochlake.metastore.coordination.embedded_server ROOT [--linger SECONDS] [--java PATH]

The one idea: users are counted by the operating system. Each holds a shared lock on one file, so an exclusive lock can
be had exactly when there are none, whether they closed, crashed or were killed. The supervisor stops the server while
it *holds* that exclusive lock: a user that comes at this moment waits for the lock and then starts a new server.

It belongs to no terminal (own session, so a Ctrl-C in a shell does not reach it) and keeps no pipe of its starter
open. Java dies with its supervisor (on Linux by the kernel's parent-death signal; elsewhere the next supervisor ends
it, known by its process id and its command line). When Java dies alone, it is started again on the same port and data.
Data that ZooKeeper cannot read any more is set aside: all of it can be rebuilt from the epoch log.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from epochlake.metastore.coordination.embedded_files import (
    EmbeddedFiles,
    files_of,
    free_loopback_port,
    is_serving,
    lock_within,
    open_lock,
    try_lock,
    write_endpoint,
)

HOST = "127.0.0.1"
LINGER_SECONDS = 3.0

_POLL_SECONDS = 0.05
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_LARGEST_LOG_BYTES = 1_000_000
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
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",
    "-Dzookeeper.jmx.log4j.disable=true",
)


class ServerFailed(Exception):
    """The server cannot be started or kept up; the message says why, with the end of its log."""


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
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def jars_of_pyspark() -> Path:
    """The directory with the jars that come with PySpark, found without importing it (which takes a second)."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ServerFailed("PySpark is not installed, and with it the jars of ZooKeeper: install pyspark==4.2.0")
    return Path(found.submodule_search_locations[0]) / "jars"


def java_command(java: str, options: tuple[str, ...], main_class: str, configuration: Path) -> list[str]:
    """The command that serves ZooKeeper from PySpark's jars."""
    return [java, *options, "-cp", f"{jars_of_pyspark()}/*", main_class, str(configuration)]


def die_with_parent() -> None:
    """In a child process, before it executes something: be killed when the parent dies. Does nothing off Linux."""
    with contextlib.suppress(OSError, AttributeError):
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


class Server:
    """The Java process of one root, and starting, watching and stopping it."""

    def __init__(self, files: EmbeddedFiles, java: str) -> None:
        self._files = files
        self._java = java
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
            if "BindException" in str(error):
                self.port = free_loopback_port()
            else:
                self._set_data_aside()
            self._run()
        write_endpoint(self._files, HOST, self.port)

    def keep_up(self) -> None:
        """Start it again, on the same port and data, if it died."""
        if self._process is None or self._process.poll() is None:
            return
        quick = time.monotonic() - self._started_at < _QUICK_DEATH_SECONDS
        self._quick_deaths = self._quick_deaths + 1 if quick else 0
        if self._quick_deaths > _QUICK_DEATHS_ALLOWED:
            raise ServerFailed(f"the server died {self._quick_deaths} times in a row\n{_end_of(self._files.log)}")
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
        self._files.java_process.unlink(missing_ok=True)

    def _run(self) -> None:
        files = self._files
        files.configuration.write_text(configuration_of(files.data, self.port))
        command = java_command(
            self._java, _JAVA_OPTIONS, "org.apache.zookeeper.server.ZooKeeperServerMain", files.configuration
        )
        self._started_at = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        self._process = process
        files.java_process.write_text(str(process.pid))
        while not is_serving(HOST, self.port, files.data):
            if process.poll() is not None:
                raise ServerFailed(f"java ended with {process.returncode}\n{_end_of(files.log)}")
            if time.monotonic() - self._started_at > _START_SECONDS:
                self.stop()
                raise ServerFailed(f"it did not serve within {_START_SECONDS:g} s\n{_end_of(files.log)}")
            time.sleep(0.02)

    def _set_data_aside(self) -> None:
        if self._files.data.exists():
            self._files.data.replace(self._files.directory / f"data.unreadable-{int(time.time())}")


def supervise(files: EmbeddedFiles, java: str, linger_seconds: float) -> None:
    """Keep the server up while it is used, and `linger_seconds` longer; then stop it."""
    users = open_lock(files.users)
    stop_asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stop_asked.append(number))
    server = Server(files, java)
    try:
        server.start()
        idle_since: float | None = None
        last_user = 0
        while not stop_asked:
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
        files.endpoint.unlink(missing_ok=True)
        server.stop()


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


def _end_of(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


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
    arguments = parser.parse_args(argv)
    files = files_of(arguments.root)
    files.directory.mkdir(parents=True, exist_ok=True)
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
        supervise(files, arguments.java, arguments.linger)
    except (ServerFailed, OSError) as error:
        log(str(error))
        files.failure.write_text(str(error))
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
