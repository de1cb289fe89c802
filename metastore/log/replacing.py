"""Putting a whole commit of the log where one is torn or missing, by one process at a time.

A version is never free while it is mended. A torn file is replaced in one step and kept under another
name; a missing one is put by a link, which fails when somebody else was faster.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from epochlake.metastore import delta_commits
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.disk import LockNotHad
from epochlake.metastore.storage.storage import Storage

_LOCK = ".mending.lock"


@contextmanager
def alone(storage: Storage, uri: str) -> Iterator[None]:
    """Nobody else mends the log at a local URI meanwhile. Raises StorageUnavailable when somebody does."""
    path = places.require_local(places.join(uri, delta_commits.LOG, _LOCK))
    with ExitStack() as held:
        try:
            held.enter_context(storage.disk.locked(path))
        except LockNotHad as error:
            raise StorageUnavailable(
                f"the log at {uri} was not changed: another process mends it, or its disk knows no locks "
                f"({os.strerror(error.errno or 0)})",
                hint="Try again",
            ) from error
        except OSError as error:
            raise failures.unavailable("mend the log at", uri, error) from error
        yield


def put_whole(storage: Storage, uri: str, version: int, operation: str, lines: Sequence[delta_commits.Action]) -> None:
    """Put a whole commit in place of a torn or missing one, as `put_bytes` does."""
    put_bytes(storage, uri, version, delta_commits.encoded(delta_commits.CommitName(uri, version), operation, lines))


def put_bytes(storage: Storage, uri: str, version: int, data: bytes) -> None:
    """Put the bytes of a commit in place of a torn or missing one. Called `alone`.

    Raises StorageUnavailable, also when a missing one was put by somebody else meanwhile: look again then.
    """
    path, disk = places.require_local(delta_commits.commit_uri(uri, version)), storage.disk

    def put() -> bool:
        directory, name = os.path.split(path)
        temporary = places.temporary_beside(path)
        try:
            disk.write(temporary, data, new=True)
            storage.syncing.sync([temporary])
            if disk.status(path) is not None:
                disk.link(path, f"{directory}/.{name}.torn-{time.time_ns()}")
                disk.rename(temporary, path)
            else:
                disk.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):
                disk.delete(temporary)
        storage.syncing.sync(directories=[directory])
        return True

    if not storage.within_deadline("mend", uri, put):
        raise StorageUnavailable(
            f"commit {version} of the log at {uri} was put by somebody else meanwhile", hint="Try again"
        )
