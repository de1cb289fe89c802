"""What a replica table asks of those who read it, as Delta's protocol has it, and how it comes to ask for more."""

from __future__ import annotations

from epochlake.metastore import delta_commits
from epochlake.metastore.delta_commits import Action
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage

_TYPE = '"timestamp_ntz"'
_FEATURE = "timestampNtz"


def protocol_of(schema: str) -> Action:
    """The protocol of a table with these columns, Delta's JSON. None can be opened that leaves out what types need."""
    if not needs_feature(schema):
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    features = {"readerFeatures": [_FEATURE], "writerFeatures": [_FEATURE]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}


def needs_feature(schema: str) -> bool:
    """Whether a table with these columns has to say that it has a type which came to Delta later."""
    return _TYPE in schema


def is_left_out(error: Exception) -> bool:
    """Whether a table could not be opened as its protocol leaves out what its types need."""
    return f"'{_FEATURE}'" in str(error)


def complete(storage: Storage, uri: str) -> bool:
    """Let a table ask for what its types need: earlier versions left that out where a column got such a type later.

    False where it is not on a local disk. Raises StorageUnavailable.
    """
    if places.local_path(uri) is None:
        return False
    version = delta_commits.newest_version(storage, uri)
    # Where others commit at the same moment they do this, or it is done by who opens the table next.
    delta_commits.put_commit(storage, uri, version + 1, "UPGRADE PROTOCOL", [protocol_of(_TYPE)])
    return True
