"""What ZooKeeper knows of the cluster's root: where it is, and when its log was compared with the replicas.

A copy of a root must not become a second cluster: the first who commits at a root leaves its URI, and whoever commits
compares. Two roots of one cluster would place rows on the same volumes differently.
"""

from __future__ import annotations

from epochlake.metastore.coordination.client import Coordination
from kazoo.exceptions import NodeExistsError

ROOT = "root"
COMPARED = "compared"


def known_root(coordination: Coordination) -> str | None:
    """The URI of the root that is registered, behind a read barrier. Raises CoordinationUnavailable."""
    return _text(coordination, ROOT)


def register_root(coordination: Coordination, uri: str) -> str:
    """Register a root unless there is one; the one that is registered then. Raises CoordinationUnavailable."""
    return uri if _create(coordination, ROOT, uri) else known_root(coordination) or uri


def replace_root(coordination: Coordination, uri: str) -> None:
    """Register a root in place of another one: it was moved, or the other one was given up."""
    _put(coordination, ROOT, uri)


def compared_in(coordination: Coordination) -> str | None:
    """In which run of the embedded ZooKeeper the log was compared with the replicas last, behind a read barrier. Raises
    CoordinationUnavailable.
    """
    return _text(coordination, COMPARED)


def note_comparison(coordination: Coordination, run: str) -> None:
    """The log was compared with the replicas in this run. Raises CoordinationUnavailable."""
    _put(coordination, COMPARED, run)


def _text(coordination: Coordination, name: str) -> str | None:
    value = coordination.barrier(coordination.path(name))
    return None if value is None else value.data.decode(errors="replace")


def _create(coordination: Coordination, name: str, text: str) -> bool:
    """Whether it was not there before."""
    path = coordination.path(name)
    try:
        coordination.call(f"create {name}", lambda c: c.create_async(path, text.encode(), makepath=True))
    except NodeExistsError:
        return False
    return True


def _put(coordination: Coordination, name: str, text: str) -> None:
    if not _create(coordination, name, text):
        path = coordination.path(name)
        coordination.call(f"write {name}", lambda c: c.set_async(path, text.encode()))
