"""Names and schemas of the metadata as tables: what each column is, once for Arrow, Spark and whoever queries them.

Each field says in its Arrow metadata (`comment`) what it holds; `describe` gives that as text. Text columns that repeat
are dictionaries of int32 in Arrow and plain strings in Spark. Volumes, nodes and tables come with the names that people
join on. A token range is `(token_start, token_end]`, but the lowest one includes the lowest token.
"""

from __future__ import annotations

import pyarrow as pa

NODE_ID = "node_id"
NODE = "node"
HOST_ID = "host_id"
DATACENTER = "datacenter"
RACK = "rack"
STATE = "state"
TOKENS = "tokens"
REPLACES = "replaces"
REPLACED_BY = "replaced_by"
VOLUMES = "volumes"
VOLUME_IDS = "volume_ids"
VOLUME_ID = "volume_id"
VOLUME = "volume"
URI = "uri"
CAPACITY = "capacity"
KEYSPACE = "keyspace"
PLACEMENT = "placement"
STRATEGY = "strategy"
REPLICATION = "replication"
TABLE = "table"
TABLE_ID = "table_id"
COLUMNS = "columns"
PRIMARY_KEY = "primary_key"
APPEND_ONLY = "append_only"
VERSION = "version"
TABLETS = "tablets"
RESIZE_TYPE = "resize_type"
RESIZE_SEQ_NUMBER = "resize_seq_number"
TABLET = "tablet"
LABEL = "label"
TOKEN_START = "token_start"
TOKEN_END = "token_end"
REPLICAS = "replicas"
NEW_REPLICAS = "new_replicas"
KIND = "kind"
STAGE = "stage"
LEAVING = "leaving"
PENDING = "pending"
SESSION = "session"
ERROR = "error"
ORDINAL = "ordinal"
WRITE_SET = "write_set"
LOGICAL_REPLICA = "logical_replica"
RANGE = "range"
READS = "reads"
WRITES = "writes"
OPERATION_ID = "operation_id"
STEP = "step"
NEXT_STEP = "next_step"
CANCELLING = "cancelling"
REPLACED = "replaced"
LOCKED_RANGES = "locked_ranges"
SOURCE_DATACENTER = "source_datacenter"
FORCE = "force"
PAUSED = "paused"
MAINTENANCE = "maintenance"
WEIGHT = "weight"
TAGS = "tags"
TARGET_BYTES = "target_bytes"
MIN_COUNT = "min_count"
MAX_COUNT = "max_count"
APART_FROM = "apart_from"
REQUEST_ID = "request_id"
REASON = "reason"
DETAIL = "detail"
REQUESTED_EPOCH = "requested_epoch"
STARTED_EPOCH = "started_epoch"
EPOCH = "epoch"
COMPONENT = "component"
NAME = "name"
FIELD = "field"
BEFORE = "before"
AFTER = "after"
SUMMARY = "summary"
STREAM_ID = "stream_id"
RETENTION_SECONDS = "retention_seconds"
LIMIT_SECONDS = "limit_seconds"
SINCE_EPOCH = "since_epoch"
CHANGE_GENERATION = "generation"
GENERATED_AT = "generated_at"
STREAMS = "streams"
STREAM = "stream"
POSITION = "position"
FIRST_TOKEN = "first_token"
LAST_TOKEN = "last_token"
PRODUCT_VERSION = "product_version"
SUPPORTED_FEATURES = "supported_features"
UPGRADE_STATE = "upgrade_state"
DESCRIBED_EPOCH = "described_epoch"
FEATURE = "feature"
ENABLED_EPOCH = "enabled_epoch"

INT = pa.int32()
LONG = pa.int64()
TEXT = pa.string()
REPEATED = pa.dictionary(pa.int32(), pa.string())


def _field(name: str, kind: pa.DataType, comment: str) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"comment": comment})


def _maybe(name: str, kind: pa.DataType, comment: str) -> pa.Field:
    return pa.field(name, kind, nullable=True, metadata={"comment": comment})


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


_CHANGED = _field(EPOCH, LONG, "the epoch that last changed the row")
_TABLET_KEY = (
    _field(KEYSPACE, REPEATED, "name of the keyspace"),
    _field(TABLE, REPEATED, "name of the table, without the keyspace"),
    _field(TABLE_ID, REPEATED, "id of the table, never used again"),
    _field(TABLET, INT, "number of the tablet, or of the range on the ring, in token order from 0"),
)
_TOKEN_RANGE = (
    _field(TOKEN_START, LONG, "token that the range begins after"),
    _field(TOKEN_END, LONG, "last token of the range"),
)

NODES_SCHEMA = pa.schema(
    [
        _field(NODE_ID, INT, "number of the node, never used again"),
        _field(NODE, TEXT, "name; one that has left may share it with one that came later"),
        _field(HOST_ID, TEXT, "unique for ever"),
        _field(DATACENTER, TEXT, "datacenter"),
        _field(RACK, TEXT, "rack, within the datacenter"),
        _field(STATE, TEXT, "state of the node by the names of seed 000"),
        _field(VOLUMES, INT, "number of volumes"),
        _field(CAPACITY, LONG, "bytes, all volumes together"),
        _field(TOKENS, _list(LONG), "tokens for ring placement"),
        _maybe(REPLACES, INT, "number of the node that this one replaces"),
        _maybe(REPLACED_BY, INT, "number of the node that has replaced this one"),
        _CHANGED,
        _field(MAINTENANCE, pa.bool_(), "whether it keeps its replicas and gets no new ones"),
        _field(WEIGHT, pa.float64(), "what the capacity of its volumes is multiplied by for the balancer"),
        _field(TAGS, _list(TEXT), "what placement rules may ask for"),
        _maybe(PRODUCT_VERSION, TEXT, "the version that its agent has announced; null: none has"),
        _field(SUPPORTED_FEATURES, _list(TEXT), "the features that its agent has announced"),
    ]
)
UNREGISTERED_NODES_SCHEMA = pa.schema(
    [
        _field(NODE_ID, INT, "number of the node, never used again"),
        _field(NODE, TEXT, "the name that it had; another node may have it now"),
        _field(HOST_ID, TEXT, "never let in again"),
        _maybe(REPLACES, INT, "number of the node that it replaced"),
        _maybe(REPLACED_BY, INT, "number of the node that replaced it"),
        _field(VOLUME_IDS, _list(INT), "numbers of its volumes, never used again"),
        _field(EPOCH, LONG, "the epoch in which it left"),
    ]
)
VOLUMES_SCHEMA = pa.schema(
    [
        _field(VOLUME_ID, INT, "number of the volume, never used again; a replica is one"),
        _field(VOLUME, TEXT, "name, unique on its node"),
        _field(URI, TEXT, "where it is"),
        _field(CAPACITY, LONG, "bytes"),
        _field(NODE_ID, INT, "number of its node"),
        _field(NODE, TEXT, "name of its node"),
        _field(DATACENTER, TEXT, "datacenter of its node"),
        _field(RACK, TEXT, "rack of its node"),
        _field(STATE, TEXT, "state of its node"),
    ]
)
KEYSPACES_SCHEMA = pa.schema(
    [
        _field(KEYSPACE, TEXT, "name"),
        _field(PLACEMENT, TEXT, "tablets or ring"),
        _field(STRATEGY, TEXT, "replication strategy"),
        _field(REPLICATION, pa.map_(TEXT, INT), "replicas by datacenter, or replication_factor with SimpleStrategy"),
        _CHANGED,
    ]
)
TABLES_SCHEMA = pa.schema(
    [
        _field(KEYSPACE, TEXT, "name of the keyspace"),
        _field(TABLE, TEXT, "name"),
        _field(TABLE_ID, TEXT, "id, never used again"),
        _field(
            COLUMNS,
            _list(
                pa.struct(
                    [
                        pa.field("name", TEXT, nullable=False),
                        pa.field("type", TEXT, nullable=False),
                        pa.field("nullable", pa.bool_(), nullable=False),
                    ]
                )
            ),
            "columns with their types as Spark's DDL",
        ),
        _field(PRIMARY_KEY, _list(TEXT), "columns of the primary key"),
        _field(APPEND_ONLY, pa.bool_(), "whether rows are only ever added"),
        _field(VERSION, TEXT, "state id of the last change of its schema"),
        _maybe(TABLETS, INT, "number of tablets; null with ring placement"),
        _maybe(RESIZE_TYPE, TEXT, "none, split or merge: what is decided"),
        _maybe(RESIZE_SEQ_NUMBER, LONG, "number of that decision"),
        _CHANGED,
        _maybe(TARGET_BYTES, LONG, "bytes that a replica of a tablet is to have; null: as configured"),
        _field(MIN_COUNT, LONG, "fewest tablets that it may have"),
        _maybe(MAX_COUNT, LONG, "most tablets that it may have; null: as many as it needs"),
        _field(TAGS, _list(TEXT), "tags that a node needs to get replicas"),
        _field(APART_FROM, _list(TEXT), "ids of tables whose nodes get no replicas"),
    ]
)
TABLETS_SCHEMA = pa.schema(
    [
        *_TABLET_KEY,
        _field(LABEL, TEXT, "name of the tablet in storage, k-i for tablet i of 2^k"),
        *_TOKEN_RANGE,
        _field(REPLICAS, _list(INT), "volume numbers; while the tablet moves, those that it moves from"),
        _maybe(STAGE, REPEATED, "stage of its transition; null when it is in none"),
    ]
)
TRANSITIONS_SCHEMA = pa.schema(
    [
        *_TABLET_KEY,
        _field(KIND, TEXT, "migration, intranode_migration or rebuild"),
        _field(STAGE, TEXT, "stage by the names of seed 000"),
        _field(REPLICAS, _list(INT), "volume numbers before"),
        _field(NEW_REPLICAS, _list(INT), "volume numbers after"),
        _maybe(LEAVING, INT, "volume number of the replica that goes"),
        _field(PENDING, INT, "volume number of the replica that comes"),
        _maybe(SESSION, TEXT, "open session of the stage's side effects"),
        _field(REASON, TEXT, "why it was started"),
        _maybe(ERROR, TEXT, "what sent it back"),
        _field(STARTED_EPOCH, LONG, "the epoch that started it"),
        _CHANGED,
    ]
)
READ_PLACEMENTS_SCHEMA = pa.schema(
    [
        *_TABLET_KEY,
        *_TOKEN_RANGE,
        _field(ORDINAL, INT, "place of the replica among those of its tablet or range, from 0"),
        _field(VOLUME_ID, INT, "number of the volume"),
        _field(VOLUME, REPEATED, "name of the volume"),
        _field(URI, REPEATED, "where the volume is"),
        _field(NODE_ID, INT, "number of the node"),
        _field(NODE, REPEATED, "name of the node"),
        _field(HOST_ID, REPEATED, "host id of the node"),
        _field(DATACENTER, REPEATED, "datacenter of the node"),
        _field(RACK, REPEATED, "rack of the node"),
    ]
)
WRITE_PLACEMENTS_SCHEMA = READ_PLACEMENTS_SCHEMA.append(
    _field(
        WRITE_SET,
        REPEATED,
        "the replica set that an acknowledgement counts in: old, new or both. A write must reach its level among the "
        "old (old, both) and among the new (new, both), where there are any; one at rest has only old ones",
    )
).append(
    _field(
        LOGICAL_REPLICA,
        INT,
        "the logical replica of the tablet or range that this is an owner of, from 0: one that is about to be replaced "
        "and the one that takes its place are owners of the same one",
    )
)
RING_RANGES_SCHEMA = pa.schema(
    [
        _field(KEYSPACE, REPEATED, "name of the keyspace, whose tables all have these ranges"),
        _field(RANGE, INT, "number of the range, in token order from 0"),
        *_TOKEN_RANGE,
        _field(READS, _list(INT), "numbers of the nodes that serve reads, in ring order"),
        _field(WRITES, _list(INT), "numbers of the nodes that must get the writes"),
        _maybe(OPERATION_ID, REPEATED, "the operation in flight that changes the range; null when none does"),
    ]
)
OPERATIONS_SCHEMA = pa.schema(
    [
        _field(OPERATION_ID, TEXT, "name of the operation: of its request, or request/n for the n-th step of one"),
        _field(REQUEST_ID, TEXT, "the request that it is part of"),
        _field(KIND, TEXT, "join, leave, move, replace, remove, rebuild or change_replication"),
        _maybe(NODE_ID, INT, "number of the node that it is about; null for a change of replication"),
        _maybe(NODE, TEXT, "name of that node"),
        _maybe(REPLACED, INT, "number of the node that it takes out in favour of the other one"),
        _maybe(KEYSPACE, TEXT, "the keyspace whose replication changes"),
        _field(TOKENS, _list(LONG), "tokens that the node owns once it has finished"),
        _field(STEP, TEXT, "the step that was done last: PREPARE, START or MID"),
        _maybe(NEXT_STEP, TEXT, "the step that comes next; null when it goes back"),
        _field(CANCELLING, pa.bool_(), "whether it goes back"),
        _field(LOCKED_RANGES, LONG, "ranges that it keeps other operations from, over all replication settings"),
        _maybe(SESSION, TEXT, "open session of its streaming"),
        _field(STARTED_EPOCH, LONG, "the epoch of PREPARE"),
        _field(EPOCH, LONG, "the epoch of its last step"),
    ]
)
UPGRADE_SCHEMA = pa.schema(
    [
        _field(UPGRADE_STATE, TEXT, "not_upgraded, build_coordinator_state or done, by the names of seed 000"),
        _maybe(DESCRIBED_EPOCH, LONG, "the epoch that described what is taken over; null: the cluster began here"),
        _CHANGED,
    ]
)
PINS_SCHEMA = pa.schema(
    [
        _field(KEYSPACE, TEXT, "keyspace"),
        _field(TABLE, TEXT, "table, without its keyspace"),
        _field(TABLE_ID, TEXT, "id of the table"),
        _field(TABLET, INT, "number of the tablet when it was pinned"),
        _field(LABEL, TEXT, "the pinned tablet as k-i, tablet i of 2^k: what has tokens of it stays where it is"),
        _field(REASON, TEXT, "why"),
        _CHANGED,
    ]
)
FEATURES_SCHEMA = pa.schema(
    [
        _field(FEATURE, TEXT, "name of a feature that the cluster uses, for ever"),
        _field(ENABLED_EPOCH, LONG, "the epoch that enabled it"),
    ]
)
REQUESTS_SCHEMA = pa.schema(
    [
        _field(REQUEST_ID, TEXT, "id"),
        _field(
            KIND,
            TEXT,
            "join, leave, replace, remove, rebuild or move of a node; keyspace_rf_change, check_and_repair_cdc_streams",
        ),
        _maybe(NODE_ID, INT, "number of the node that it is about; null when it is about none"),
        _maybe(NODE, TEXT, "name of that node"),
        _maybe(KEYSPACE, TEXT, "the keyspace that it is about"),
        _field(STATE, TEXT, "pending, running, cancelling, done, failed or cancelled"),
        _field(PAUSED, pa.bool_(), "whether nothing new is begun for it"),
        _field(REASON, TEXT, "why it was asked for"),
        _maybe(DETAIL, TEXT, "what became of it"),
        _field(REQUESTED_EPOCH, LONG, "the epoch that asked"),
        _maybe(STARTED_EPOCH, LONG, "the epoch that took it up"),
        _CHANGED,
        _field(TOKENS, _list(LONG), "tokens that were asked for; empty: to be allocated, or none are needed"),
        _maybe(STRATEGY, TEXT, "the strategy that the keyspace is to have"),
        _maybe(REPLICATION, TEXT, "JSON of the replication that the keyspace is to have"),
        _maybe(SOURCE_DATACENTER, TEXT, "where a rebuild streams from; null: from anywhere"),
        _field(FORCE, pa.bool_(), "whether it may go below what replication asks for"),
    ]
)
CHANGE_STREAMS_SCHEMA = pa.schema(
    [
        _field(TABLE_ID, TEXT, "id of the table"),
        _field(TABLE, TEXT, "keyspace.table"),
        _field(STREAM_ID, TEXT, "names the stream among all that the table has had"),
        _field(RETENTION_SECONDS, pa.float64(), "for how long every change is kept"),
        _field(LIMIT_SECONDS, pa.float64(), "for how long a change is kept for a named reader that has not read it"),
        _field(SINCE_EPOCH, LONG, "the epoch that began the stream"),
        _CHANGED,
    ]
)
CHANGE_GENERATIONS_SCHEMA = pa.schema(
    [
        _field(TABLE_ID, TEXT, "id of the table"),
        _field(TABLE, TEXT, "keyspace.table"),
        _field(STREAM_ID, TEXT, "names the index of changes that is divided"),
        _field(CHANGE_GENERATION, INT, "number of the generation: 1, 2, 3 … for each index"),
        _field(GENERATED_AT, pa.timestamp("us", "UTC"), "its timestamp: when it was committed"),
        _field(SINCE_EPOCH, LONG, "the epoch that committed it"),
        _field(STREAMS, INT, "how many streams it has, each a range of tokens"),
        _maybe(POSITION, LONG, "its changes come after this position; null until it is published"),
    ]
)
CHANGE_RANGES_SCHEMA = pa.schema(
    [
        _field(TABLE_ID, TEXT, "id of the table"),
        _field(TABLE, TEXT, "keyspace.table"),
        _field(CHANGE_GENERATION, INT, "number of the generation"),
        _field(STREAM, INT, "number of the stream in it: 0, 1, 2 …"),
        _field(FIRST_TOKEN, LONG, "its first token"),
        _field(LAST_TOKEN, LONG, "its last token, which belongs to it"),
    ]
)
CHANGES_SCHEMA = pa.schema(
    [
        _field(COMPONENT, TEXT, "kind of thing: node, keyspace, table, tablet, transition, ring range, operation, …"),
        _field(NAME, TEXT, "which one"),
        _field(FIELD, TEXT, "what of it; empty when all of it appeared or went"),
        _maybe(BEFORE, TEXT, "JSON of the value before; null when there was none"),
        _maybe(AFTER, TEXT, "JSON of the value after; null when there is none"),
    ]
)


def describe(schema: pa.Schema) -> dict[str, str]:
    """What each column holds, by name."""
    return {field.name: (field.metadata or {}).get(b"comment", b"").decode() for field in schema}
