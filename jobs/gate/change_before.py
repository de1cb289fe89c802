"""The row before a change: what its key had before it, in the order of the stream.

It follows from what is kept. Where the key has an earlier change in the stream, it is the newest of those that is not
late. Else it is of before all that is kept, and is read from the table as of the newest time up to there: whatever
comes later in the stream is newer than that, as retention keeps what late changes are compared with. So it is exact,
or refused where the table's history is gone, and costs writers nothing.

A reader that asks for it remembers each key that has changed since the oldest change that is kept. Where the row had
expired when the change was written there was none: no read has shown it then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.gate.expiry import bounds_of, live_rows
from epochlake.jobs.gate.moments import moment_of
from epochlake.jobs.replicas.change_entries import ChangeEntry
from epochlake.jobs.replicas.change_index import ChangeIndex, ChangesGone
from epochlake.jobs.replicas.change_reading import CHANGE, DELETE, LATE, Wanted, changes_of
from epochlake.jobs.replicas.row_values import bare_rows
from epochlake.jobs.replicas.schema import WRITTEN_AT
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest, words_of
from epochlake.placement.rejections import Code
from epochlake.placement.tokens import Interval
from numpy.typing import NDArray

BEFORE = "_before"

Key = tuple[object, ...]

AsOf = Callable[[Table, Sequence[str], pa.Table, int], pa.Table]
"""Reads columns of the rows of a table with some keys, as of a time in microseconds since 1970. The table, its columns
and those of the keys are called as they were when the table was known.
"""


class Scans(Protocol):
    """What reads tables by the names of now: a `Cluster`."""

    def catch_up(self) -> ClusterMetadata:
        """The metadata of now."""

    def scan(self, table: str, *, columns: Sequence[str], keys: pa.Table, as_of: datetime) -> pa.RecordBatchReader:
        """Rows as they were."""


def rows_as_of(cluster: Scans) -> AsOf:
    """Reads rows of a table as it was known, whatever it and its columns are called by now.

    A name may be that of another column by now. What is made raises Rejected where a column was dropped, or has got a
    type whose values do not fit back, and as `Cluster.scan`.
    """

    def read(known: Table, names: Sequence[str], keys: pa.Table, time: int) -> pa.Table:
        while True:
            now = cluster.catch_up().schema.tables.get(known.table_id)
            if now is None:
                raise Rejected(Code.UNKNOWN_TABLE, f"{known.full_name} was dropped since its changes were asked for")
            called = _names_now(known, now, [*names, *keys.column_names])
            there = keys.rename_columns([called[name] for name in keys.column_names])
            columns = [called[name] for name in names]
            try:
                rows = cluster.scan(now.full_name, columns=columns, keys=there, as_of=moment_of(time)).read_all()
            except (InvalidRequest, Rejected):
                if _is_as_it_was(now, cluster):
                    raise
                continue
            # A scan is of the columns that it finds.
            if _is_as_it_was(now, cluster):
                return _as_known(known, rows.select(columns).rename_columns(list(names)))

    return read


def _is_as_it_was(table: Table, cluster: Scans) -> bool:
    now = cluster.catch_up().schema.tables.get(table.table_id)
    return now is not None and (now.version, now.full_name) == (table.version, table.full_name)


def _names_now(known: Table, now: Table, names: Sequence[str]) -> dict[str, str]:
    """By the name that each of these columns was known by what it is called now. Raises Rejected where one is gone."""
    there = {column.column_id: column.name for column in now.numbered}
    found = {column.name: there.get(column.column_id) for column in known.numbered if column.name in names}
    gone = [name for name, called in found.items() if called is None]
    if gone:
        raise _altered(known, f"{', '.join(gone)} was dropped")
    return {name: called for name, called in found.items() if called is not None}


def _as_known(known: Table, rows: pa.Table) -> pa.Table:
    """Rows with the types that their columns had; what was widened since, where the values fit."""
    schema = question(known, rows.column_names).asked.schema
    for field in schema:
        found = rows.schema.field(field.name).type
        # Arrow gives nulls for fields of structs that are called otherwise.
        if found != field.type and pa.types.is_nested(field.type):
            raise _altered(known, f"{field.name} has become another type")
    try:
        return rows.cast(schema)
    except pa.ArrowInvalid as error:
        raise _altered(
            known, f"a wider type has a value that the one of before cannot hold: {words_of(error)}"
        ) from error


def _altered(table: Table, what: str) -> Rejected:
    return Rejected(
        Code.SCHEMA_CHANGED,
        f"the columns of {table.full_name} have changed since these changes were asked for: {what}",
        hint="Ask for the changes again, after the `bookmark` of these",
    )


class RowsBefore:
    """The rows before the changes of one reader, who asks for them entry by entry, in order.

    `columns`: those of the row that are told. `within`: he asks of changes with these tokens only, and nothing else is
    remembered. Raises InvalidRequest for a table that is append-only.
    """

    def __init__(
        self,
        storage: Storage,
        index: ChangeIndex,
        table: Table,
        columns: Sequence[str],
        as_of: AsOf,
        within: Sequence[Interval] | None = None,
    ) -> None:
        require_replaced_rows(table)
        self._storage = storage
        self._index = index
        self._as_of = as_of
        self._key = list(table.primary_key)
        self._columns = list(columns)
        self._table = table
        numbers = {one.column_id for one in table.lifetimes}
        expire = [column.name for column in table.numbered if column.column_id in numbers]
        names = list(dict.fromkeys([*self._columns, *self._key, *expire]))
        self._rows = Wanted(table, question(table, names).asked.schema, within)
        self._keys = Wanted(table, question(table, self._key).asked.schema, within)
        self._last: dict[Key, int] = {}
        self._learned = 0
        begun = index.begun()
        self._begun = 0 if begun is None else begun.newest
        self.type = pa.struct([self._rows.schema.field(name) for name in self._columns])

    def of(self, entry: ChangeEntry, changes: pa.RecordBatch) -> pa.Array:
        """The row before each of these changes of an entry, which have the columns of the key; null where there was
        none, or the change is late. Raises HistoryNotKept, ChangesGone, StorageUnavailable.
        """
        self._learn(entry.position - 1)
        late = changes.column(LATE).to_pylist()
        asked = {key: at for at, key in enumerate(self._keys_of(changes)) if not late[at]}
        of_before: list[Key] = []
        floor = self._index.floor()
        in_entries: dict[int, list[Key]] = defaultdict(list)
        for key in asked:
            position = self._last.get(key, 0)
            if position > floor:
                in_entries[position].append(key)
            else:
                of_before.append(key)
        live = live_rows(
            self._table, bounds_of(self._table, pc.max(changes.column(WRITTEN_AT).cast(pa.int64())).as_py())
        )
        found = np.full(changes.num_rows, -1, dtype=np.int64)
        parts: list[pa.Table] = []
        rows = 0
        for position, keys in sorted(in_entries.items()):
            part = self._in_entry(position, set(keys))
            if part is None:  # it was dropped just now: then the table is asked as of there
                of_before += keys
                continue
            part = part if live is None else part.filter(live)
            rows = _place(found, asked, self._keys_of(part), rows)
            parts.append(part.select(self._columns))
        if of_before:
            part = self._before_all(of_before, changes)
            part = part if live is None else part.filter(live)
            rows = _place(found, asked, self._keys_of(part), rows)
            parts.append(part.select(self._columns))
        return self._told(found, parts)

    def _told(self, found: NDArray[np.int64], parts: Sequence[pa.Table]) -> pa.Array:
        none = found < 0
        if not parts:
            return pa.nulls(len(found), self.type)
        at = pa.array(found, pa.int64(), mask=none)
        fields = list(self.type)
        rows = pa.concat_tables([part.cast(pa.schema(fields)) for part in parts]).combine_chunks().take(at)
        columns = [rows.column(name).combine_chunks() for name in self._columns]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(none))

    def _learn(self, up_to: int) -> None:
        """Remember where each key has changed last, up to a position."""
        begin = max(self._learned, self._index.floor())
        for entry in self._index.entries(begin, up_to):
            try:
                for batch in changes_of(self._storage, self._index, entry, self._keys):
                    late = batch.column(LATE).to_pylist()
                    times = batch.column(WRITTEN_AT).cast(pa.int64()).to_pylist()
                    for key, is_late, time in zip(self._keys_of(batch), late, times, strict=True):
                        # What was appended before the stream began may be older than what the table had then.
                        if not is_late and time > self._begun:
                            self._last[key] = entry.position
            except ChangesGone:
                continue  # dropped just now: it is before all that is kept
        self._learned = max(up_to, self._learned)

    def _in_entry(self, position: int, keys: set[Key]) -> pa.Table | None:
        """The rows of an entry with some keys; None where it is not kept any more."""
        entry = self._index.entry(position)
        assert entry is not None
        kept = []
        try:
            for batch in changes_of(self._storage, self._index, entry, self._rows):
                kinds = batch.column(CHANGE).to_pylist()
                here = [key in keys and kind != DELETE for key, kind in zip(self._keys_of(batch), kinds, strict=True)]
                kept.append(batch.select(self._rows.schema.names).filter(pa.array(here, pa.bool_())))
        except ChangesGone:
            return None
        return pa.Table.from_batches(kept, self._rows.schema)

    def _before_all(self, keys: Sequence[Key], changes: pa.RecordBatch) -> pa.Table:
        """The rows that keys had at the oldest position that is kept."""
        time = max(self._begun, self._index.newest_up_to(self._index.floor()))
        if not time:
            return self._rows.schema.empty_table()
        wanted = set(keys)
        here = pa.array([key in wanted for key in self._keys_of(changes)], pa.bool_())
        given = pa.Table.from_batches([changes.select(self._key).filter(here)])
        return self._as_of(self._table, self._rows.schema.names, given, time)

    def _keys_of(self, rows: pa.RecordBatch | pa.Table) -> list[Key]:
        keys = bare_rows(rows.select(self._key))
        return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))


def require_replaced_rows(table: Table) -> None:
    """Raises InvalidRequest for a table that is append-only: no change has a row before it."""
    if table.append_only:
        raise InvalidRequest(
            f"{table.full_name} is append-only: no change of it takes the place of a row", hint="Leave `before` out"
        )


def with_keys(table: Table, columns: Sequence[str]) -> list[str]:
    """The columns that changes are read with where the rows before them are told: those, and the key."""
    return list(dict.fromkeys([*columns, *table.primary_key]))


def _place(found: NDArray[np.int64], asked: dict[Key, int], keys: Sequence[Key], rows: int) -> int:
    """Say which rows, counted from `rows` on, are those of which changes; how many there are by then."""
    for number, key in enumerate(keys, start=rows):
        if key in asked:
            found[asked[key]] = number
    return rows + len(keys)


def with_before(changes: pa.RecordBatch, before: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """Changes with the rows before them, and with the columns of `schema` only."""
    columns = [before if field.name == BEFORE else changes.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
