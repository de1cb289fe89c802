"""The embedded ZooKeeper, as those see it who use it: there while they need it, shared by all who use the same root.

Whoever comes first starts it, whoever goes last lets it stop, and nobody has to know which of the two he
is. A user holds a shared lock on a file; the supervisor (`server.py`) does the rest.

Guarantees: one server for a root at a time, reachable on loopback only; it outlives the process that started it while
others use it; a user that was killed does not keep it alive. Failure modes: when Java or the supervisor die, users see
their connection break for a second or two, and the server comes back on the same port (the supervisor restarts Java,
any user restarts the supervisor). Sessions survive that if they are longer than the outage.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from epochlake.metastore.coordination.embedded.files import (
    EmbeddedFiles,
    files_of,
    is_serving,
    is_supervised,
    lock_within,
    open_lock,
    read_endpoint,
    try_lock,
    was_exchanged,
)
from epochlake.metastore.coordination.embedded.jars import zookeeper_jars
from epochlake.metastore.coordination.embedded.room import full_disk
from epochlake.metastore.coordination.embedded.server import LINGER_SECONDS
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable, StorageUnavailable
from epochlake.metastore.preflight import require_java
from epochlake.metastore.storage.failures import StorageMisconfigured

logger = logging.getLogger(__name__)

START_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.02
_WATCH_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class EmbeddedZooKeeper:
    """One use of the embedded server of `root`, a local directory: `start`, then `release`.

    Several uses in one process are fine; each counts. After the last use of all processes ended, the server goes on
    for `linger_seconds` (as told to the supervisor by the use that started it) and then stops.

    `serves_at` is told the connect string again and again. It changes when the port was taken by somebody else while
    the server was down, or another copy of the root, which has its own, has come in the place of this one.
    """

    def __init__(
        self,
        root: Path | str,
        linger_seconds: float = LINGER_SECONDS,
        start_timeout: float = START_TIMEOUT_SECONDS,
        serves_at: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._files = files_of(_local_directory(root))
        self._linger_seconds = linger_seconds
        self._start_timeout = start_timeout
        self._serves_at = serves_at
        self._use: int | None = None
        self._using = threading.Lock()
        self._released = threading.Event()

    def start(self) -> str:
        """The connect string of the server, which serves now.

        Raises `JavaUnsuitable` without a usable Java, `ZooKeeperMissing` without the jars, `CoordinationUnavailable`
        when the server does not start (with the end of its log), `StorageUnavailable` when the root cannot be written.
        """
        deadline = time.monotonic() + self._start_timeout
        files = self._files
        if self._use is not None:
            # It was started before, and who connects to it tries again: it is one use, with one watch.
            return _connect_string(self._serving(deadline))
        try:
            files.directory.mkdir(exist_ok=True)  # not its parents: a root that is away is not made anew
            use = open_lock(files.users)
        except FileNotFoundError as error:
            raise StorageUnavailable(
                f"could not start the embedded ZooKeeper in {files.directory}: the root is not there",
                hint="Check that it is mounted, and retry",
            ) from error
        except OSError as error:
            if (full := full_disk(files.directory.parent)) is not None:
                raise self._not_started(full) from error
            # A directory of somebody else's does not become one's own by trying again.
            kind = StorageMisconfigured if isinstance(error, PermissionError) else StorageUnavailable
            raise kind(
                f"could not start the embedded ZooKeeper in {files.directory}: {error.strerror}",
                hint="Make the directory writable, or name an ensemble in `zookeeper.connect`",
            ) from error
        try:
            # The lock is not to be had while a supervisor without users stops its server.
            if not lock_within(use, fcntl.LOCK_SH, deadline):
                raise self._not_started("a supervisor that is about to stop does not end")
            # A supervisor looks every now and then: let it see that somebody came, even if we are gone by then.
            os.utime(use)
            endpoint = self._serving(deadline)
        except BaseException:
            os.close(use)
            raise
        self._use = use
        self._released = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(self._released,), name="epochlake-embedded-zookeeper", daemon=True
        )
        watch.start()
        return _connect_string(endpoint)

    def run(self) -> str:
        """Which run of the server this is: each writes anew where it serves, also in a directory that was restored."""
        try:
            written = self._files.endpoint.stat()
        except OSError:
            return ""
        return f"{written.st_ino}:{written.st_mtime_ns}"

    def release(self) -> None:
        """End this use. Never raises; the process's end does the same."""
        self._released.set()
        with self._using:
            use, self._use = self._use, None
        if use is not None:
            os.close(use)

    def _serving(self, deadline: float) -> tuple[str, int]:
        """Where the server serves; started if necessary, by one process at a time."""
        try:
            return self._started(deadline)
        except OSError as error:
            # The root went away meanwhile, as a mount does.
            reason = f"its files cannot be used ({error.strerror}: is the root still mounted?)"
            raise self._not_started(reason) from error

    def _started(self, deadline: float) -> tuple[str, int]:
        files = self._files
        starting = open_lock(files.starting)
        try:
            if not lock_within(starting, fcntl.LOCK_EX, deadline):
                raise self._not_started("another process that is starting it does not get on")
            started = False
            while True:
                if is_supervised(files):
                    endpoint = read_endpoint(files)
                    if endpoint is not None and is_serving(*endpoint, files.data):
                        return endpoint
                elif started:
                    raise self._not_started(_reason(files))
                else:
                    _start_supervisor(files, self._linger_seconds)
                    started = True
                if time.monotonic() >= deadline:
                    raise self._not_started(f"it does not serve within {self._start_timeout:g} s")
                time.sleep(_POLL_SECONDS)
        finally:
            os.close(starting)

    def _watch(self, released: threading.Event) -> None:
        """Start a new supervisor if the one there was got killed: those who are connected wait for their server. And
        tell where it is now.

        What stands in the way (no memory, a full disk, a root that is away) may pass: it is tried again, less often.
        """
        pause = _WATCH_SECONDS
        while not released.wait(pause):
            try:
                self._use_what_is_there()
                if not is_supervised(self._files):
                    self._start_again(released)
                self._tell_where()
                pause = _WATCH_SECONDS
            except Exception as error:
                if pause == _WATCH_SECONDS:
                    logger.warning("could not start the embedded ZooKeeper again, it is tried on: %s", error)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _use_what_is_there(self) -> None:
        """Be a user of the copy of the root that is there now, when it is another one."""
        with self._using:
            if self._use is None or not was_exchanged(self._use, self._files.users):
                return
            use = open_lock(self._files.users)
            if not try_lock(use, fcntl.LOCK_SH):
                os.close(use)  # its supervisor is about to stop: the next look is after that
                return
            os.close(self._use)
            self._use = use

    def _tell_where(self) -> None:
        endpoint = read_endpoint(self._files)
        if endpoint is not None:
            self._serves_at(_connect_string(endpoint))

    def _start_again(self, released: threading.Event) -> None:
        starting = open_lock(self._files.starting)
        try:
            if try_lock(starting, fcntl.LOCK_EX) and not is_supervised(self._files) and not released.is_set():
                logger.info("the supervisor of the embedded ZooKeeper is gone; starting another one")
                _start_supervisor(self._files, self._linger_seconds)
        finally:
            os.close(starting)

    def _not_started(self, reason: str) -> CoordinationUnavailable:
        return _not_started(self._files, reason)


@contextlib.contextmanager
def embedded_zookeeper(root: Path | str, linger_seconds: float = LINGER_SECONDS) -> Iterator[str]:
    """The connect string of the embedded ZooKeeper of `root`, which serves until the end of the block at least.

    Raises as `EmbeddedZooKeeper.start` does; `ConfigurationError` when the root is not a local directory.
    """
    use = EmbeddedZooKeeper(root, linger_seconds)
    connect = use.start()
    try:
        yield connect
    finally:
        use.release()


def _connect_string(endpoint: tuple[str, int]) -> str:
    return "{}:{}".format(*endpoint)


def _local_directory(root: Path | str) -> Path:
    # A URI that went through `Path` has lost one of its slashes.
    uri = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(root))
    if uri is None:
        return Path(root)
    if uri[1] == "file":
        return Path("/" + str(root)[len("file:") :].lstrip("/"))
    raise ConfigurationError(
        f"the embedded ZooKeeper keeps its files under the root, and {root} is not a local directory",
        hint="Name an ensemble in `zookeeper.connect` (host:port,host:port), or use a local root",
    )


# The standard library comes first, whatever lies beside the user's script (a `types.py`). After it the supervisor looks
# where this process looks, as the package may be in a zip of `spark-submit`; site-packages last, with its `.pth` files.
_SUPERVISOR = """
import sys
sys.path += sys.argv.pop(1).split(chr(10))
import site
site.main()
from epochlake.metastore.coordination.embedded.server import main
sys.exit(main(sys.argv[1:]))
"""


def _start_supervisor(files: EmbeddedFiles, linger_seconds: float) -> None:
    java, jars = require_java(), zookeeper_jars()
    looked_in = "\n".join(os.path.abspath(part) for part in sys.path if part)
    command = [sys.executable, "-S", "-P", "-c", _SUPERVISOR, looked_in, str(files.directory.parent)]
    command += ["--linger", str(linger_seconds), "--java", str(java), "--jars", str(jars)]
    try:
        # In a session of its own: a Ctrl-C at the terminal is for who waits here.
        started = subprocess.run(
            command,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            start_new_session=True,
            timeout=START_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_started(files, f"its supervisor cannot be started: {error}") from error
    if started.returncode != 0:
        told = started.stderr.strip().splitlines()
        raise _not_started(files, f"its supervisor {told[-1] if told else f'ended with {started.returncode}'}")


def _not_started(files: EmbeddedFiles, reason: str) -> CoordinationUnavailable:
    """The error, which names a full disk whatever the `reason` was: nobody can write down that there is no room."""
    full = full_disk(files.directory.parent)
    reason = full or reason.rstrip(". \n")
    return CoordinationUnavailable(
        f"could not start the embedded ZooKeeper in {files.directory}: {reason}. Its log is {files.log}",
        hint="Make room, and try again" if full else "Look into its log, or name an ensemble in `zookeeper.connect`",
    )


def _reason(files: EmbeddedFiles) -> str:
    with contextlib.suppress(OSError):
        if said := files.failure.read_text().strip():
            return said
    return "its supervisor ended"
