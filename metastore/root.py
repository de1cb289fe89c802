"""Where things are below the root of a cluster, and whether a new cluster may begin there."""

from __future__ import annotations

import shlex

from epochlake.metastore.errors import ConfigurationError, LogUnreadable
from epochlake.metastore.log.generations import DIRECTORY, newest
from epochlake.metastore.log.log_place import LogPlace
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage


class Root:
    """Where things are below the root of a cluster."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.log = places.join(uri, "log")
        self.snapshots = places.join(uri, "snapshots")
        self.batches = places.join(uri, "batches")
        self.compactions = places.join(uri, "compactions")
        self.damaged = places.join(uri, "damaged")
        self.leases = places.join(uri, "leases")
        self.receipts = places.join(uri, "receipts")
        self.merges = places.join(uri, "merges")
        self.spills = places.join(uri, "spills")
        self.changes = places.join(uri, "changes")
        self.coordination = places.join(uri, "coordination")
        self.log_members = places.join(uri, DIRECTORY)
        self.log_table = places.join(uri, "log-table")


def require_new(storage: Storage, root: Root, log: LogPlace) -> None:
    """Refuse to begin a cluster where another one has lost its log: its tables would be taken for files of nobody.

    A root whose log is there passes: the log itself refuses a second beginning. Raises LogUnreadable, and
    ConfigurationError where the log of the root is somewhere else than the configuration says.
    """
    places.require_fit_for_tables(root.uri)
    _require_named(storage, root, log.table)
    if log.is_there():
        return
    rows = (root.batches, root.merges, root.changes, root.compactions)
    below = (root.log, root.snapshots, *rows, root.damaged, root.receipts, root.leases, root.log_members)
    left = [place for place in below if _holds_files(storage, place)]
    # Of two that begin at once the other may have made the log, and more, since it was looked for.
    if left and not log.is_there():
        lost = f"the table {log.table} has no epoch" if log.table else f"{log.uri} has lost its _delta_log, or has gone"
        raise LogUnreadable(
            f"{root.uri} holds what a cluster has left ({', '.join(left)}), but no log: {lost}",
            hint=f"Restore it from {_source(storage, root)} and do not begin another cluster here; to give that "
            "cluster up for good, choose another root",
        )


def _source(storage: Storage, root: Root) -> str:
    generation = newest(storage, root.log_members)
    if generation is None:
        return "a backup"
    return f"its log members by `epochlake metadata recover {shlex.join(generation.members)}`"


def name_log(storage: Storage, root: Root, table: str) -> None:
    """Say below the root in which table its log is, so that nobody who does not know it begins another one."""
    storage.write_bytes(root.log_table, table.encode())


def _require_named(storage: Storage, root: Root, table: str) -> None:
    named = storage.read_bytes(root.log_table).decode() if storage.exists(root.log_table) else ""
    if named and table != named:
        said = f"[log] table is {table!r}" if table else "[log] table is not set"
        raise ConfigurationError(
            f"the log of {root.uri} is in the table {named}, and {said}", hint=f"Set [log] table = {named!r}"
        )
    if table and not named and storage.exists(places.join(root.log, "_delta_log")):
        raise ConfigurationError(
            f"{root.uri} has a log of its own, and [log] table is {table!r}",
            hint="Leave [log] table out, or choose another root",
        )


def _holds_files(storage: Storage, place: str) -> bool:
    try:
        return bool(storage.list_files(place))
    except failures.MissingFile:
        return False
