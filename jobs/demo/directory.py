"""The directory of a demo: what is where in it, and the care with which an earlier one is removed.

Nothing is ever deleted that the demo has not made itself. A directory is a demo's when its marker says so
and when it holds nothing but what the demo puts there; anything else is refused, with the name of what is in the way.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochlake import Configuration, EpochlakeError, InvalidRequest, StorageUnavailable
from epochlake.metastore import configuration as configurations
from epochlake.metastore.coordination.embedded.files import files_of, is_supervised

MARKER = "epochlake-demo.json"
CONFIGURATION = "epochlake.toml"
CLUSTER = "cluster"
NODES = "nodes"
MESSAGES = "messages"
AGENTS = "agents"
MADE_HERE = frozenset({MARKER, CONFIGURATION, CLUSTER, NODES, MESSAGES, AGENTS})

SETTINGS = """\
# The cluster of `epochlake demo`. Look at it with `epochlake --conf <this file> status`, or `log list`.
root = {root}

[cluster]
name = "demo"

[zookeeper]
embedded_linger_seconds = 0             # nothing is left running

[log]
snapshot_every = 50                     # some snapshots to verify

[coordinator]
backoff_seconds = 0.2
shared_stream_bytes = 0                 # tablets set out few at a time, so that batches meet them
compaction = "off"                      # the checks compare files of replicas, which are to stand still
"""

STREAMING = """\
streaming = "agents"                    # files go from node to node

[agents]
ask = {address}
"""


class DemoRunning(EpochlakeError):
    """Another demo uses the directory."""

    exit_code = 75


class DemoDirectory:
    """A demo's directory, claimed by this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.configuration_file = directory / CONFIGURATION
        self.cluster = directory / CLUSTER
        self.messages = directory / MESSAGES

    def storage_of(self, node: str) -> Path:
        """Everything that a node has."""
        return self.directory / NODES / node

    def volume_of(self, node: str) -> Path:
        return self.storage_of(node) / "d1"

    def home_of(self, node: str) -> Path:
        """What the agent of a node must not forget."""
        return self.directory / AGENTS / node

    def configure(self, agent: str | None = None) -> None:
        """Write the configuration. `agent`: the address of an agent; agents stream then."""
        settings = SETTINGS.format(root=json.dumps(str(self.cluster)))
        settings += "" if agent is None else STREAMING.format(address=json.dumps(agent))
        self.configuration_file.write_text(settings, encoding="utf-8")

    def configuration(self) -> Configuration:
        return configurations.load(self.configuration_file, environ={})

    def lose(self, node: str) -> None:
        """Take away a node's storage for good, in one step as a disk dies, whoever is writing to it."""
        gone = self.directory / NODES / f".{node}-lost"
        self.storage_of(node).rename(gone)
        shutil.rmtree(gone)

    def wait_for_server_to_end(self, seconds: float = 20.0) -> None:
        """Wait until the embedded ZooKeeper has stopped, which its last user's end makes it do."""
        files = files_of(self.cluster)
        deadline = time.monotonic() + seconds
        while files.supervisor.exists() and is_supervised(files):
            if time.monotonic() > deadline:
                raise StorageUnavailable(f"the embedded ZooKeeper of {self.cluster} did not stop in {seconds:.0f} s")
            time.sleep(0.05)

    def remove(self) -> None:
        """Remove what the demo has made; the directory too, when nothing else is in it."""
        _clear(self.directory)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()


@contextmanager
def claimed(directory: Path) -> Iterator[DemoDirectory]:
    """The directory, emptied of an earlier demo and held until the block ends.

    Raises InvalidRequest when something is there that no demo has made, DemoRunning when one is using it.
    """
    directory = Path(os.path.abspath(directory))
    _refuse_foreign(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageUnavailable(
            f"the demo cannot use {directory}: {error.strerror or error}", hint="Choose another place with --root"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoRunning(
                f"a demo is running in {directory}", hint="Wait for it, or choose another --root"
            ) from None
        place = DemoDirectory(directory)
        place.wait_for_server_to_end()
        _clear(directory, keep=MARKER)
        os.truncate(lock, 0)
        os.write(lock, json.dumps({"made by": "epochlake demo", "process": os.getpid()}).encode() + b"\n")
        place.messages.mkdir()
        place.configure()
        yield place
    finally:
        os.close(lock)


def _refuse_foreign(directory: Path) -> None:
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise InvalidRequest(
            f"the demo needs a directory of its own, {directory} is none", hint="Choose another --root"
        )
    if not directory.exists():
        return
    found = {entry.name for entry in directory.iterdir()}
    if found and MARKER not in found:
        raise InvalidRequest(
            f"the demo would replace {directory}, but that is no demo's directory (it holds {_some(found)} and "
            f"no {MARKER})",
            hint="Choose another --root, or remove it yourself",
        )
    if foreign := found - MADE_HERE:
        raise InvalidRequest(
            f"the demo would replace the earlier one in {directory}, but did not make everything there "
            f"({_some(foreign)})",
            hint="Move that away, or choose another --root",
        )


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _clear(directory: Path, keep: str | None = None) -> None:
    """Remove what a demo makes. The marker goes last, so that a removal that was interrupted can be done again."""
    for name in sorted(MADE_HERE - {MARKER}):
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if keep != MARKER:
        (directory / MARKER).unlink(missing_ok=True)
