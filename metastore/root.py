"""Where things are below the root of a cluster, and whether a new cluster may begin there."""

from __future__ import annotations

from epochlake.metastore.errors import LogUnreadable
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


def require_new(storage: Storage, root: Root) -> None:
    """Refuse to begin a cluster where another one has lost its log: its tables would be taken for files of nobody.

    A root with a log passes: the log itself refuses a second beginning. Raises LogUnreadable.
    """
    places.require_fit_for_tables(root.uri)
    log = places.join(root.log, "_delta_log")
    if storage.exists(log):
        return
    below = (root.log, root.snapshots, root.batches, root.compactions, root.damaged, root.receipts, root.leases)
    left = [place for place in below if _holds_files(storage, place)]
    # Of two that begin at once the other may have made the log, and more, since it was looked for.
    if left and not storage.exists(log):
        raise LogUnreadable(
            f"{root.uri} holds what a cluster has left ({', '.join(left)}), but no log: "
            f"{places.join(root.log, '')} has lost its _delta_log, or has gone",
            hint="Restore it from a backup and do not begin another cluster here; to give that cluster up "
            "for good, choose another root",
        )


def _holds_files(storage: Storage, place: str) -> bool:
    try:
        return bool(storage.list_files(place))
    except failures.MissingFile:
        return False
