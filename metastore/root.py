"""Where things are below the root of a cluster, and whether a new cluster may begin there."""

from __future__ import annotations

from epochlake.metastore import storage
from epochlake.metastore.errors import LogUnreadable


class Root:
    """Where things are below the root of a cluster."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.log = storage.join(uri, "log")
        self.snapshots = storage.join(uri, "snapshots")
        self.batches = storage.join(uri, "batches")
        self.compactions = storage.join(uri, "compactions")
        self.damaged = storage.join(uri, "damaged")
        self.leases = storage.join(uri, "leases")
        self.receipts = storage.join(uri, "receipts")


def require_new(root: Root) -> None:
    """Refuse to begin a cluster where another one has lost its log: its tables would be taken for files of nobody.

    A root with a log passes: the log itself refuses a second beginning. Raises LogUnreadable.
    """
    storage.require_fit_for_tables(root.uri)
    log = storage.join(root.log, "_delta_log")
    if storage.exists(log):
        return
    places = (root.log, root.snapshots, root.batches, root.compactions, root.damaged, root.receipts, root.leases)
    left = [place for place in places if _holds_files(place)]
    # Of two that begin at once the other may have made the log, and more, since it was looked for.
    if left and not storage.exists(log):
        raise LogUnreadable(
            f"{root.uri} holds what a cluster has left ({', '.join(left)}), but no log: "
            f"{storage.join(root.log, '')} has lost its _delta_log, or has gone",
            hint="Restore it from a backup and do not begin another cluster here; to give that cluster up "
            "for good, choose another root",
        )


def _holds_files(place: str) -> bool:
    try:
        return bool(storage.list_files(place))
    except storage.MissingFile:
        return False
