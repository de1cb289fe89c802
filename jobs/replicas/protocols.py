"""How a replica table comes to ask more of those who read it, as Delta's protocol has it."""

from __future__ import annotations

from epochlake.metastore.delta_commits import CommitName, newest_version, put_commit
from epochlake.metastore.delta_tables import TIMESTAMP, TIMESTAMPS, protocol_of
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage


def is_left_out(error: Exception) -> bool:
    """Whether a table could not be opened as its protocol leaves out what its types need."""
    return f"'{TIMESTAMPS}'" in str(error)


def complete(storage: Storage, uri: str) -> bool:
    """Let a table ask for what its types need: earlier versions left that out where a column got such a type later.

    False where it is not on a local disk. Raises StorageUnavailable.
    """
    if places.local_path(uri) is None:
        return False
    version = newest_version(storage, uri)
    # Where others commit at the same moment they do this, or it is done by who opens the table next.
    put_commit(storage, CommitName(uri, version + 1), "UPGRADE PROTOCOL", [protocol_of(TIMESTAMP)])
    return True
