"""Why a change is refused: every code that `Rejected` and `PlanRejected` carry, with its meaning.

Programs may rely on a code; the text beside it in an error is for people. `docs/rejections.md` is made from this list
by `python -m epochlake.placement.rejections`.
"""

from __future__ import annotations

import sys
from enum import StrEnum


class Code(StrEnum):
    """A code is never given another meaning, and never taken away while a release raises it."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Code:
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    # The cluster, its log and requests to it.
    ALREADY_INITIALISED = "already-initialised", "there is a cluster at the root already"
    NOT_INITIALISED = "not-initialised", "there is no cluster yet: nothing but its beginning can be committed"
    FEATURE_NOT_ENABLED = "feature-not-enabled", "the change needs a feature that the cluster does not use yet"
    FEATURE_LACKING = "feature-lacking", "a member does not support the feature"
    UNKNOWN_FEATURE = "unknown-feature", "this version has no such feature"
    UPGRADING = "upgrading", "the cluster is being taken over from elsewhere: nothing else is changed meanwhile"
    UPGRADE_REFUSED = "upgrade-refused", "what is to be taken over does not fit the cluster, or is not built yet"
    CHANGES_PAUSED = "changes-paused", "an operator has paused changes of the cluster"
    EPOCH_MOVED = "epoch-moved", "the change was asked for at another epoch than the newest one"
    STALE_PLAN = "stale-plan", "the metadata is not what the change was planned on: it is planned again, or refused"
    REQUEST_ID_USED = "request-id-used", "the request id was used for another change"
    INVALID_EVENT = "invalid-event", "the event contradicts itself or cannot be read"
    INVALID_TEXT = "invalid-text", "a text has characters that no log entry may have"
    NOTHING_TO_DO = "nothing-to-do", "it is already as asked"
    NOT_PAUSED = "not-paused", "what is to go on is not paused"
    WRONG_DIGEST = "wrong-digest", "the digest of a snapshot is not that of the metadata"
    OLD_INCARNATION = "old-incarnation", "the incarnation that is to begin has begun already"
    NOTHING_LOST = "nothing-lost", "the log holds all that is known: no loss can be accepted"
    CAN_BE_HEALED = "can-be-healed", "the log can be healed: no loss has to be accepted"
    # Names.
    INVALID_NAME = "invalid-name", "a name could not be a directory and a SQL identifier alike"
    RESERVED_NAME = "reserved-name", "the name is one that Epochlake uses itself"
    # Nodes and volumes.
    UNKNOWN_NODE = "unknown-node", "there is no such node"
    UNKNOWN_VOLUME = "unknown-volume", "there is no such volume"
    UNKNOWN_DATACENTER = "unknown-datacenter", "no node is in that datacenter"
    NODE_EXISTS = "node-exists", "a node has this name"
    HOST_EXISTS = "host-exists", "a node has, or had, this host id"
    VOLUME_EXISTS = "volume-exists", "a volume has this name or place"
    NO_VOLUMES = "no-volumes", "a node needs a volume"
    INVALID_CAPACITY = "invalid-capacity", "a capacity is not a positive number of bytes"
    INVALID_WEIGHT = "invalid-weight", "a weight is out of range"
    IN_MAINTENANCE = "in-maintenance", "the node is in maintenance: it gets no new replicas"
    LOST = "lost", "the storage is declared lost: it can only be removed or replaced"
    ROWS_LOST = "rows-lost", "rows would be left without a replica, which has to be said to be meant"
    STORAGE_LEFT = "storage-left", "a node that has left has files that vacuum has not deleted, or does not answer"
    IS_LOG_MEMBER = "is-log-member", "a log member is on a volume of the node"
    WRONG_RACK = "wrong-rack", "a replacement is in another datacenter or rack than the node that it replaces"
    # Requests: nodes that come, go and change.
    UNKNOWN_REQUEST = "unknown-request", "there is no such request"
    REQUEST_EXISTS = "request-exists", "a request has this id"
    REQUEST_IN_THE_WAY = "request-in-the-way", "another request has to end first"
    REQUEST_PAUSED = "request-paused", "the request is paused"
    WRONG_REQUEST = "wrong-request", "the request is of a kind for which this cannot be done"
    WRONG_OPTION = "wrong-option", "an option does not go with this kind of request"
    WRONG_STATE = "wrong-state", "a node or a request is in a state in which this cannot be done"
    CANNOT_CANCEL = "cannot-cancel", "the request has gone too far to be cancelled"
    PLAN_NEEDED = "plan-needed", "the request needs a plan of the ranges that change hands"
    REPLICAS_LEFT = "replicas-left", "the node still has replicas"
    STREAMS_NOT_DIVIDED = "streams-not-divided", "a check of streams ends before each is divided as its table is"
    REPLICATION_NOT_REACHED = "replication-not-reached", "a change of replication ends before the replicas are there"
    REPLICATION_TOO_HIGH = "replication-too-high", "a datacenter has fewer nodes than replicas are asked for"
    TOO_FEW_NODES = "too-few-nodes", "too few nodes would be left for the replicas"
    # Keyspaces and tables.
    UNKNOWN_KEYSPACE = "unknown-keyspace", "there is no such keyspace"
    UNKNOWN_TABLE = "unknown-table", "there is no such table"
    UNKNOWN_COLUMN = "unknown-column", "there is no such column"
    KEYSPACE_EXISTS = "keyspace-exists", "a keyspace has this name"
    KEYSPACE_NOT_EMPTY = "keyspace-not-empty", "the keyspace has tables"
    TABLE_EXISTS = "table-exists", "a table has this name or id"
    NOT_RESTORABLE = "not-restorable", "the dropped table cannot be restored"
    COLUMN_EXISTS = "column-exists", "two columns have the same name"
    NO_COLUMNS = "no-columns", "a table needs a column"
    NO_PRIMARY_KEY = "no-primary-key", "a table needs a primary key"
    NULLABLE_KEY = "nullable-key", "a column of the primary key may be null"
    INVALID_KEY_TYPE = "invalid-key-type", "a column of this type cannot be part of a primary key"
    INVALID_REPLICATION = "invalid-replication", "the replication cannot be had in any cluster"
    INVALID_SIZE = "invalid-size", "a size of tablets is out of range"
    INVALID_TABLETS = "invalid-tablets", "a number of tablets is out of range or no power of two"
    NO_REPLICAS = "no-replicas", "a keyspace needs a replica"
    NO_TOKENS = "no-tokens", "no node owns a token: a keyspace on the ring needs one"
    RACK_NEEDED = "rack-needed", "the replicas need more racks than there would be"
    UNSUPPORTED_PLACEMENT = "unsupported-placement", "this is done to tablets, or to the ring, and not to the other"
    RULE_IMPOSSIBLE = "rule-impossible", "no node, or too few, could satisfy the rule"
    PLACEMENT_RULE = "placement-rule", "a rule of the table keeps its tablets from this node"
    BATCH_USED = "batch-used", "the name of the batch was used for other rows"
    NO_CHANGES = "no-changes", "the changes of the table are not kept"
    KEY_COLUMN = "key-column", "a column of the primary key says where rows are: it can only be renamed and described"
    NARROWER_TYPE = "narrower-type", "the column's type cannot become that one: not every value of it would fit"
    NULLABLE_COLUMN = "nullable-column", "rows that are there may have null in the column: it cannot become not null"
    INVALID_DEFAULT = "invalid-default", "the column needs a default, or cannot have this one"
    INVALID_CHECK = "invalid-check", "the check cannot be understood, or its name is taken"
    UNKNOWN_CHECK = "unknown-check", "the table has no such check"
    CHECKED_COLUMN = "checked-column", "a check of the table reads the column"
    INVALID_TTL = "invalid-ttl", "rows of the table cannot expire like that"
    TTL_COLUMN = "ttl-column", "a column by which rows have expired cannot go"
    INVALID_GENERATED_COLUMN = "invalid-generated-column", "the column cannot be generated like that"
    GENERATING_COLUMN = "generating-column", "a generated column of the table reads the column"
    CHECK_VIOLATED = "check-violated", "a row makes a check of the table false"
    SCHEMA_CHANGED = "schema-changed", "the columns have changed since the rows were made, so that some would be lost"
    # Tablets.
    UNKNOWN_TABLET = "unknown-tablet", "there is no such tablet"
    IS_A_REPLICA = "is-a-replica", "the volume is a replica of the tablet already"
    NOT_A_REPLICA = "not-a-replica", "the volume is no replica of the tablet"
    REPLICA_ON_NODE = "replica-on-node", "another volume of the node is a replica of the tablet"
    WRONG_DATACENTER = "wrong-datacenter", "a tablet does not leave its datacenter"
    WRONG_KIND = "wrong-kind", "the transition is not of this kind"
    WRONG_STAGE = "wrong-stage", "the stage does not follow the one that the transition is in"
    WRONG_SESSION = "wrong-session", "the session is not the one that is open"
    NO_TRANSITION = "no-transition", "the tablet is not in transition"
    TRANSITION_IN_THE_WAY = "transition-in-the-way", "a transition of the tablet, or of the table, has to end first"
    RESIZE_IN_THE_WAY = "resize-in-the-way", "the table is being split or merged"
    SIBLINGS_APART = "siblings-apart", "tablets that are to be merged are not on the same volumes"
    TOO_FEW_REPLICAS = "too-few-replicas", "the tablet would have no replica left in a datacenter"
    TOO_FEW_TABLETS = "too-few-tablets", "the table cannot have fewer tablets"
    TOO_MANY_TABLETS = "too-many-tablets", "the table cannot have more tablets"
    # The ring and its operations.
    TOKENS_TAKEN = "tokens-taken", "a token belongs to another node, or cannot belong to anybody"
    TOKENS_UNCHANGED = "tokens-unchanged", "the node has these tokens already"
    UNKNOWN_OPERATION = "unknown-operation", "there is no such operation"
    OPERATION_EXISTS = "operation-exists", "an operation has this id"
    OPERATION_IN_FLIGHT = "operation-in-flight", "the operation of the request has not ended"
    OPERATION_IN_THE_WAY = "operation-in-the-way", "an operation on the ring has to end first"
    OPERATION_REFUSED = "operation-refused", "the operation cannot be done on the ring that was described"
    CANCELLING = "cancelling", "the operation is being cancelled: it only goes back"
    NODE_STATE = "node-state", "the node is not in the state that the operation takes"
    NODE_BUSY = "node-busy", "the node takes part in another operation"
    RANGES_LOCKED = "ranges-locked", "another operation has locked ranges that this one needs"
    HANDS_TO_DEPARTING = "hands-to-departing", "ranges would be handed to a node that is about to go"
    WOULD_NOT_SETTLE = "would-not-settle", "the operations together would not reach what the strategy says"
    LAST_NODE = "last-node", "it is the last node of the ring"
    BELOW_REPLICATION = "below-replication", "fewer nodes would be left than a keyspace has replicas"
    ONLY_REPLICA = "only-replica", "the node holds the only replica of ranges"
    KEYSPACE_BUSY = "keyspace-busy", "another operation changes the keyspace"
    REPLICATION_STEP = "replication-step", "replication changes by one step at a time"
    NO_SOURCE = "no-source", "nobody else holds ranges that are to be rebuilt"


def document() -> str:
    """The page of all codes."""
    rows = "\n".join(f"| `{code}` | {code.meaning} |" for code in sorted(Code))
    return f"""# Rejections

A change that the metadata does not allow is refused: nothing is logged, the exit code is 3, and the error has a code
that programs may rely on (`Rejected.code` in Python, `error.code` with `--output json`). The message is for people.
This page has all codes. (Written by `python -m epochlake.placement.rejections`.)

| code | meaning |
|---|---|
{rows}
"""


if __name__ == "__main__":
    sys.stdout.write(document())
