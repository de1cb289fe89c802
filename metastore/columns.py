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
    _field(TABLET, INT, "number of the tablet, in token order from 0"),
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
        _field(REPLICATION, pa.map_(TEXT, INT), "replicas by datacenter"),
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
        _field(ORDINAL, INT, "place of the replica among those of its tablet, from 0"),
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
        "old (old, both) and among the new (new, both), where there are any; a tablet at rest has only old ones",
    )
)
REQUESTS_SCHEMA = pa.schema(
    [
        _field(REQUEST_ID, TEXT, "id"),
        _field(KIND, TEXT, "join, leave, replace, remove or rebuild"),
        _field(NODE_ID, INT, "number of the node that it is about"),
        _field(NODE, TEXT, "name of that node"),
        _field(STATE, TEXT, "pending, running, done, failed or cancelled"),
        _field(REASON, TEXT, "why it was asked for"),
        _maybe(DETAIL, TEXT, "what became of it"),
        _field(REQUESTED_EPOCH, LONG, "the epoch that asked"),
        _maybe(STARTED_EPOCH, LONG, "the epoch that took it up"),
        _CHANGED,
    ]
)
CHANGES_SCHEMA = pa.schema(
    [
        _field(COMPONENT, TEXT, "kind of thing: node, volume, keyspace, table, tablet map, tablet, transition, …"),
        _field(NAME, TEXT, "which one"),
        _field(FIELD, TEXT, "what of it; empty when all of it appeared or went"),
        _maybe(BEFORE, TEXT, "JSON of the value before; null when there was none"),
        _maybe(AFTER, TEXT, "JSON of the value after; null when there is none"),
    ]
)


def describe(schema: pa.Schema) -> dict[str, str]:
    """What each column holds, by name."""
    return {field.name: (field.metadata or {}).get(b"comment", b"").decode() for field in schema}
