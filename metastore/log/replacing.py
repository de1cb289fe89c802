"""Putting a whole commit of the log where one is torn or missing, by one process at a time.

A version is never free while it is mended. A torn file is replaced in one step and kept under another
name; a missing one is put by a link, which fails when somebody else was faster.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from epochlake.metastore import delta_commits, storage, syncing
from epochlake.metastore.errors import StorageUnavailable

_LOCK = ".mending.lock"


@contextmanager
def alone(uri: str) -> Iterator[None]:
    """Nobody else mends the log at a local URI meanwhile. Raises StorageUnavailable when somebody does."""
    path = storage.local_path(storage.join(uri, delta_commits.LOG, _LOCK))
    assert path is not None, f"{uri} is on no file system"
    try:
        lock = open(path, "ab")  # noqa: SIM115
    except OSError as error:
        raise storage.unavailable("mend the log at", uri, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageUnavailable(
                f"the log at {uri} was not changed: another process mends it, or its disk knows no locks "
                f"({os.strerror(error.errno or 0)})",
                hint="Try again",
            ) from error
        yield


def put_whole(uri: str, version: int, operation: str, lines: Sequence[delta_commits.Action]) -> None:
    """Put a whole commit in place of a torn or missing one, as `put_bytes` does."""
    put_bytes(uri, version, delta_commits.encoded(operation, lines))


def put_bytes(uri: str, version: int, data: bytes) -> None:
    """Put the bytes of a commit in place of a torn or missing one. Called `alone`.

    Raises StorageUnavailable, also when a missing one was put by somebody else meanwhile: look again then.
    """
    path = storage.local_path(delta_commits.commit_uri(uri, version))
    assert path is not None, f"{uri} is on no file system"

    def put() -> bool:
        directory, name = os.path.split(path)
        temporary = f"{directory}/.{name}{storage.TEMPORARY}{time.time_ns()}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            syncing.sync([temporary])
            if os.path.exists(path):
                os.link(path, f"{directory}/.{name}.torn-{time.time_ns()}")
                os.replace(temporary, path)
            else:
                os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        syncing.sync(directories=[directory])
        return True

    if not storage.within_deadline("mend", uri, put):
        raise StorageUnavailable(
            f"commit {version} of the log at {uri} was put by somebody else meanwhile", hint="Try again"
        )
