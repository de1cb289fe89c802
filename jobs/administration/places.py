"""Where volumes may be: in places of their own, of a kind that is known, and what is said when they share a disk.

Two paths are one place when the file system says so (device and inode, up all the parents), however they
are written: through links, `..`, mounts of the same directory, letters of another case, or as a `file://` URI. A volume
inside the root, or the root inside a volume, would be cleaned, copied or counted as what it is not.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState
from epochlake.metastore.storage import places
from epochlake.metastore.storage.dead_ends import is_directory
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest

REMOTE = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs", "viewfs")
"""Schemes of places that are not local, which both delta-rs and Arrow know."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SAME = {"s3a": "s3"}

LONGEST_NAME = 255
"""Bytes in the name of a directory."""

T = TypeVar("T")

Inode = tuple[int, int]
"""Device and inode of a directory."""


def require_known_scheme(uri: str) -> None:
    """Raise InvalidRequest for a place of a kind that nobody can open."""
    match = _SCHEME.match(uri)
    if match is None:
        return
    scheme, parts = match[1].lower(), urlsplit(uri)
    if scheme == "file" and uri[match.end() :].startswith("//") and parts.netloc in ("", "localhost") and parts.path:
        return
    if scheme in REMOTE and parts.netloc:
        return
    if scheme == "file":
        raise InvalidRequest(f"a volume cannot be at {uri}", hint="Write file:///absolute/path, or the path alone")
    raise InvalidRequest(
        f"a volume cannot be at {uri}: no file system is known by the scheme {match[1]!r}",
        hint=f"Use a path, or one of {', '.join(f'{known}://' for known in ('file', *REMOTE))}",
    )


def require_places_apart(
    storage: Storage, root: str, metadata: ClusterMetadata, uris: Sequence[str], *, besides: Collection[str | None] = ()
) -> None:
    """Raise InvalidRequest where a new volume is inside or around the root, another new volume, or one that is in use,
    and where it cannot be a directory.

    Volumes of the nodes `besides` are not looked at: of the node itself, which an earlier try may have registered, and
    of the one that it replaces, as a new disk may be mounted where the lost one was.
    """
    for uri in uris:
        places.require_fit_for_tables(uri)
        _require_room_for_a_directory(storage, uri)
        above = _volume_above(storage, uri)
        if above:
            raise InvalidRequest(f"a volume cannot be at {uri}: {above} is a volume ({MARKER_FILE} is there)")
    taken = [(f"the root of the cluster ({root})", root), *_volumes_in_use(metadata, besides)]
    for uri in uris:
        for name, other in taken:
            how = _relation(storage, uri, other)
            if how:
                raise InvalidRequest(
                    f"a volume cannot be at {uri}: it is {how} {name}", hint="Give it a place of its own"
                )
        taken.append((f"another volume of this node ({uri})", uri))


def sharing_one_file_system(storage: Storage, metadata: ClusterMetadata, name: str) -> str:
    """What is to be said when volumes of node `name` are on the file system of other nodes; empty when none are.

    Replicas on different racks are lost together then. A tour on one machine is such a cluster, so it is no error.
    """
    node = metadata.directory.by_name.get(name)
    if node is None:
        return ""
    own = {inode[0] for volume in node.volumes for inode in _parents(storage, volume.uri)[:1]}
    others = sorted(
        other.name
        for other in metadata.directory.nodes.values()
        if other.node_id != node.node_id
        and other.state is not NodeState.LEFT
        and not other.lost
        and any(inode[0] in own for volume in other.volumes for inode in _parents(storage, volume.uri)[:1])
    )
    if not others:
        return ""
    named = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return (
        f"node {name} is on one file system with {named}: racks protect from nothing there, one disk loses all of "
        "their replicas"
    )


def _require_room_for_a_directory(storage: Storage, uri: str) -> None:
    """Raise InvalidRequest where something that is no directory has a local place, or a directory above it."""
    local = places.local_path(uri)
    if local is None:
        return

    def look() -> tuple[str, str]:
        path = local
        if len(os.fsencode(os.path.basename(path))) > LONGEST_NAME:
            raise InvalidRequest(f"a volume cannot be at {uri[:80]}…: its name is too long for file systems")
        while storage.disk.status(path, follow=False) is None and path != os.path.dirname(path):
            path = os.path.dirname(path)
        there = storage.disk.status(path)
        if there is not None and there.is_directory:
            return "", ""
        return path, "no directory" if there is not None else "a link that leads nowhere"

    found, what = _asked(storage, uri, look, ("", ""))
    if found:
        raise InvalidRequest(
            f"a volume cannot be at {uri}: {found} is {what}", hint="Give a directory, or a place for a new one"
        )


def _volume_above(storage: Storage, uri: str) -> str:
    """The nearest directory above a local place that is a volume, whosever it is; empty where none is."""
    local = places.local_path(uri)
    if local is None:
        return ""

    def look() -> str:
        path = os.path.dirname(storage.disk.real_path(local))
        while storage.disk.status(os.path.join(path, MARKER_FILE), follow=False) is None:
            if path == os.path.dirname(path):
                return ""
            path = os.path.dirname(path)
        return path

    return _asked(storage, uri, look, "")


def _volumes_in_use(metadata: ClusterMetadata, besides: Collection[str | None]) -> Iterator[tuple[str, str]]:
    for node in metadata.directory.nodes.values():
        if node.state is not NodeState.LEFT and node.name not in besides:
            for volume in node.volumes:
                yield f"volume {node.name}/{volume.name} ({volume.uri})", volume.uri


def _relation(storage: Storage, uri: str, other: str) -> str:
    """How a place lies to another one, empty when they are apart: `at`, `inside` or `around`."""
    one, two = _written(storage, uri), _written(storage, other)
    mine, theirs = _parents(storage, uri), _parents(storage, other)
    if one == two or (
        mine and theirs and _is_there(storage, uri) and _is_there(storage, other) and mine[0] == theirs[0]
    ):
        return "at"
    if one.startswith(two.rstrip("/") + "/") or (_is_there(storage, other) and theirs and theirs[0] in mine):
        return "inside"
    if two.startswith(one.rstrip("/") + "/") or (_is_there(storage, uri) and mine and mine[0] in theirs):
        return "around"
    return ""


def _written(storage: Storage, uri: str) -> str:
    """A place in one spelling: local ones without links, others without `.`, `..` and doubled slashes."""
    local = places.local_path(uri)
    if local is not None:
        return _asked(storage, uri, lambda: storage.disk.real_path(local), os.path.normpath(local))
    parts = urlsplit(uri)
    path = posixpath.normpath("/" + unquote(parts.path)).replace("//", "/")
    return f"{_SAME.get(parts.scheme, parts.scheme)}://{parts.netloc}{path}"


def _parents(storage: Storage, uri: str) -> list[Inode]:
    """Device and inode of a local place and all directories above it, those that are there; nearest first."""
    local = places.local_path(uri)
    if local is None:
        return []

    def look() -> list[Inode]:
        path, found = storage.disk.real_path(local), []
        while True:
            if (status := storage.disk.status(path)) is not None:
                found.append((status.device, status.number))
            if path == os.path.dirname(path):
                return found
            path = os.path.dirname(path)

    return _asked(storage, uri, look, [])


def _is_there(storage: Storage, uri: str) -> bool:
    local = places.local_path(uri)
    return local is not None and _asked(storage, uri, lambda: is_directory(storage.disk, local), False)


def _asked(storage: Storage, uri: str, call: Callable[[], T], otherwise: T) -> T:
    """What the storage says, or `otherwise` where it does not answer: a dead disk keeps nobody from adding another."""
    try:
        return storage.within_deadline("look at", uri, call)
    except StorageUnavailable:
        return otherwise
