"""Where the root of the cluster is, as ZooKeeper knows it: a copy of a root must not become a second cluster.

The first who commits at a root leaves its URI, and whoever commits compares. Two roots of one cluster
would place rows on the same volumes differently.
"""

from __future__ import annotations

from epochlake.metastore.coordination.client import Coordination
from kazoo.exceptions import NodeExistsError

ROOT = "root"


def known_root(coordination: Coordination) -> str | None:
    """The URI of the root that is registered, behind a read barrier. Raises CoordinationUnavailable."""
    value = coordination.barrier(coordination.path(ROOT))
    return None if value is None else value.data.decode(errors="replace")


def register_root(coordination: Coordination, uri: str) -> str:
    """Register a root unless there is one; the one that is registered then. Raises CoordinationUnavailable."""
    path = coordination.path(ROOT)
    try:
        coordination.call("register the root", lambda c: c.create_async(path, uri.encode(), makepath=True))
    except NodeExistsError:
        return known_root(coordination) or uri
    return uri


def replace_root(coordination: Coordination, uri: str) -> None:
    """Register a root in place of another one: it was moved, or the other one was given up."""
    register_root(coordination, uri)
    path = coordination.path(ROOT)
    coordination.call("register the root", lambda c: c.set_async(path, uri.encode()))
