"""What the processes around an embedded ZooKeeper leave for each other in `<root>/zookeeper/`.

Who uses the server, who supervises it and who is starting it are locks on files, not contents of files.
The operating system takes a lock back when its process ends, however it ends, so none of them can be stale. What is
written in a file (the endpoint, a process id) is only believed while the supervisor's lock is held, and checked.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
import time
from dataclasses import dataclass
from pathlib import Path

# Below the range from which the kernel takes ports for outgoing connections: a client that tries to reconnect to a port
# of that range, while nobody listens, can end up connected to itself and so keep the server from binding it.
_PORTS = range(20_000, 32_000)
_LOCK_PAUSE_SECONDS = 0.01


@dataclass(frozen=True)
class EmbeddedFiles:
    """The files of the server that belongs to one root."""

    directory: Path

    @property
    def users(self) -> Path:
        """Every user process holds a shared lock on it; its time of change tells that one came."""
        return self.directory / "users.lock"

    @property
    def starting(self) -> Path:
        """Locked by the process that sees to it that a server runs."""
        return self.directory / "starting.lock"

    @property
    def supervisor(self) -> Path:
        """Locked by the supervisor for as long as it lives."""
        return self.directory / "supervisor.lock"

    @property
    def endpoint(self) -> Path:
        """Where the server serves; there only while there is a supervisor whose server has started."""
        return self.directory / "endpoint.json"

    @property
    def failure(self) -> Path:
        """Why the last supervisor gave up."""
        return self.directory / "failure"

    @property
    def java_process(self) -> Path:
        return self.directory / "java.pid"

    @property
    def configuration(self) -> Path:
        return self.directory / "zoo.cfg"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"


def files_of(root: Path) -> EmbeddedFiles:
    """The files of the embedded server of the root directory."""
    return EmbeddedFiles(root.resolve() / "zookeeper")


def open_lock(path: Path) -> int:
    """A descriptor to lock; child processes that execute something else do not inherit it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def was_exchanged(descriptor: int, path: Path) -> bool:
    """Whether another file lies at `path` than the one that was opened there: another copy of the directory has come in
    its place, as a backup does. False where nothing is: the directory may come back.
    """
    try:
        there = path.stat()
    except OSError:
        return False
    return not os.path.samestat(there, os.fstat(descriptor))


def try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock (`fcntl.LOCK_SH` or `fcntl.LOCK_EX`) if it is free now."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(descriptor: int, kind: int, deadline: float) -> bool:
    """Wait for a lock until `deadline` (of `time.monotonic`)."""
    while not try_lock(descriptor, kind):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOCK_PAUSE_SECONDS)
    return True


def is_supervised(files: EmbeddedFiles) -> bool:
    """Does a supervisor live?"""
    descriptor = open_lock(files.supervisor)
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def read_endpoint(files: EmbeddedFiles) -> tuple[str, int] | None:
    """Host and port where the server was last said to serve; None when nothing readable is there."""
    try:
        content = json.loads(files.endpoint.read_text())
        return str(content["host"]), int(content["port"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_endpoint(files: EmbeddedFiles, host: str, port: int) -> None:
    """Say where the server serves, in one step: nobody reads half of it."""
    draft = files.endpoint.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"host": host, "port": port}))
    draft.replace(files.endpoint)


def is_serving(host: str, port: int, data: Path, timeout: float = 1.0) -> bool:
    """Does the ZooKeeper that keeps its data in `data` serve there?

    An open port is not enough: it is open before the server is ready (a client that connects then waits for its
    session timeout), and it could be somebody else's.
    """
    return f"dataDir={data}/".encode() in four_letter_command(host, port, b"conf", timeout)


def four_letter_command(host: str, port: int, command: bytes, timeout: float = 1.0) -> bytes:
    """What the server there answers to one of ZooKeeper's commands for operators; nothing if it does not answer."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(command)
            while part := connection.recv(65536):
                answer += part
    except OSError:
        pass
    return answer


def free_loopback_port(preferred: int | None = None) -> int:
    """A port of 127.0.0.1 that nobody uses now: the preferred one if it is free."""
    candidates = [preferred] if preferred is not None else []
    candidates += random.sample(_PORTS, 100)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port on 127.0.0.1 between 20000 and 32000")
