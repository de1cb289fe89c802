"""Changing the columns of a table: what is asked for becomes an event, and then nobody is left who knows only before.

After the commit the replicas of the table declare the new columns and are fenced at its epoch, until no quorum of any
range is without one: whatever was staged for the version before is planned again from then on, or refused. A replica
that is away then does the same before the first file of the new version lands on it (jobs/replicas/commits.py).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import msgspec
from epochlake.jobs.administration.columns import parse_added
from epochlake.jobs.administration.field_paths import FieldRequest, columns_with, named, new_name, request_of
from epochlake.jobs.administration.merge_barrier import let_merges_end
from epochlake.jobs.administration.operators import OptionChanges, TableAlteration
from epochlake.jobs.coordinator.fencing import Barrier, Fences, Sides
from epochlake.jobs.gate.check_expressions import new_check
from epochlake.jobs.gate.errors import ConsistencyNotReached, MergeContended, MergeUnfinished
from epochlake.jobs.gate.generated_expressions import with_generated
from epochlake.jobs.gate.routing import grouped
from epochlake.jobs.replicas.file_columns import default_of
from epochlake.jobs.replicas.schema import check_columns
from epochlake.metastore.committing.changes import Call, Change, Options, Preparation
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AlterColumns
from epochlake.metastore.metadata.model import Alterations, Check, Column, Table, TableId
from epochlake.metastore.metadata.struct_fields import Path
from epochlake.placement.consistency import BarrierLevel
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.jobs.replicas.store import Store
    from epochlake.metastore.metastore import Metastore

BARRIER_SECONDS = 10.0
"""So long it is waited for replicas that do not answer, before it is said that the change is not everywhere."""

PAUSE_SECONDS = 0.2


class ColumnChanges(msgspec.Struct, frozen=True):
    """What is to change of a table's columns, all at once. Names are those of before, in `order` those of after; with
    dots they are fields of structs (`address.street`: field_paths.py).

    `add`: new columns, behind the others. `rename`: from a name to another one. `widen`: the new types. `comment`: an
    empty text takes it away. `nullable`: columns that may be null from now on. `order`: all columns, or the first ones.
    `add_checks`: predicates by the names of new checks, over the columns of after; `drop_checks`: their names.
    """

    add: Sequence[Column] = ()
    drop: Sequence[str] = ()
    rename: Mapping[str, str] = {}
    widen: Mapping[str, str] = {}
    comment: Mapping[str, str] = {}
    nullable: Sequence[str] = ()
    order: Sequence[str] = ()
    # Not a word of what was asked where nothing was: requests from before have the words that they had.
    add_checks: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    drop_checks: Sequence[str] | msgspec.UnsetType = msgspec.UNSET


class ReplicasNotFenced(EpochlakeError):
    """The columns are changed, and so few replicas answer that rows made for the columns of before could still land."""

    exit_code = 75


def alter_table(
    cluster: Cluster,
    full_name: str,
    changes: OptionChanges | None = None,
    *,
    add: Sequence[str | Column | tuple[str, str, bool]] = (),
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    widen: Mapping[str, str] | None = None,
    comment: Mapping[str, str] | None = None,
    nullable: Sequence[str] = (),
    order: Sequence[str] = (),
    add_checks: Mapping[str, str] | None = None,
    drop_checks: Sequence[str] = (),
    **options: Unpack[Options],
) -> Committed:
    """Change the columns of a table, or how its tablets are sized and placed and how it is compacted (`changes`).

    `add` are definitions (`"city string not null default 'Rome'"`, `"day date generated always as (date(at))"`) or
    (name, Spark DDL type, nullable); `rename` from a name to another one; `widen` to the types of columns; `comment` to
    texts; `nullable`: columns that may be null from now on; `order`: the columns that come first. A name with dots is a
    field of a struct: `address.street`, in an array `trips.element.days`, in a map `prices.value.net`; docs/tables.md
    says which of these a field has. `add_checks` from names to predicates (`{"paid": "amount >= 0"}`): no row that is
    written from now on makes one false. Rows that are there are neither touched nor looked at (`validate_checks` does),
    and have null in a generated column that is added. A name that is used again never shows values of before.

    Returns when nothing that was staged for the columns of before can land unseen any more. Raises Rejected
    (key-column, narrower-type, unknown-column and others), InvalidRequest, and ReplicasNotFenced where too few replicas
    answer: then the change is committed, and calling again with the same `request_id` waits for them once more.
    """
    wanted = ColumnChanges(
        add=tuple(column for one in add for column in _columns_of(one)),
        drop=tuple(drop),
        rename=dict(rename or {}),
        widen=dict(widen or {}),
        comment=dict(comment or {}),
        nullable=tuple(nullable),
        order=tuple(order),
        add_checks=dict(add_checks) if add_checks else msgspec.UNSET,
        drop_checks=tuple(drop_checks) or msgspec.UNSET,
    )
    return cluster.commit(table_alteration(full_name, changes, wanted), **options)


def _columns_of(given: str | Column | tuple[str, str, bool]) -> Sequence[Column]:
    if isinstance(given, str):
        return parse_added([given])
    return [given if isinstance(given, Column) else Column(*given)]


def table_alteration(
    full_name: str, options: OptionChanges | None, columns: ColumnChanges
) -> TableAlteration | ColumnAlteration:
    """The change that is asked for: one of options, or one of columns. Raises InvalidRequest for both."""
    if columns == ColumnChanges():
        return TableAlteration(full_name, OptionChanges() if options is None else options)
    if options is not None and options != OptionChanges():
        raise InvalidRequest(
            f"columns and options of {full_name} cannot be changed at once", hint="Change one after the other"
        )
    return ColumnAlteration(full_name, columns)


class ColumnAlteration(Change[AlterColumns], frozen=True):
    """What `alter_table` commits where columns change."""

    verb: ClassVar[str] = "alter columns"
    full_name: str
    changes: ColumnChanges

    def plan(self, metadata: ClusterMetadata, call: Call) -> AlterColumns:
        table = metadata.table(self.full_name)
        columns = _generated(table, _changed(table, self.changes))
        checks = _checks(table, columns, self.changes)
        event = AlterColumns(table.table_id, table.full_name, table.version, columns, checks)
        metadata.check(event)
        for column in columns:
            if column.default is not msgspec.UNSET:
                default_of(column)
        after = metadata.apply(event, metadata.state_id).schema.tables[table.table_id]
        check_columns(after.columns, after.primary_key)
        for check in after.checked:
            # Also of columns that are widened: what it compares with may not be comparable any more.
            new_check(check.name, check.predicate, after)
        with_generated(after)
        return event

    def preparation(self, metastore: Metastore) -> Preparation[AlterColumns]:
        return _Fenced(metastore)


class _Fenced(Preparation[AlterColumns]):
    """Nothing comes before the commit; after it, the replicas of the table are fenced."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._table: TableId | None = None
        self._adds_rules = True  # where nothing is prepared it was committed before, and nobody knows

    def prepare(self, event: AlterColumns, metadata: ClusterMetadata) -> None:
        self._table = event.table_id
        checks = event.checks is not msgspec.UNSET and any(not check.epoch for check in event.checks)
        before = {column.column_id for column in metadata.schema.tables[event.table_id].numbered}
        generated = (column.column_id for column in event.columns if column.generated is not msgspec.UNSET)
        self._adds_rules = checks or any(number not in before for number in generated)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            fence_replicas(self._metastore, self._table)
            if self._adds_rules:
                self._let_merges_end()

    def _let_merges_end(self) -> None:
        store: Store = self._metastore  # type: ignore[assignment]
        for table in self._metastore.metadata.schema.tables.values():
            if not (table.checked or table.generated) or self._table not in (None, table.table_id):
                continue
            try:
                let_merges_end(store, table)
            except (MergeContended, MergeUnfinished, ConsistencyNotReached, StorageUnavailable) as error:
                raise ReplicasNotFenced(
                    f"{table.full_name} has its checks and generated columns by now, and a merge that was planned "
                    "before may still count: "
                    f"{error.statement}",
                    hint="Submit the change again under its request id",
                ) from error


def fence_replicas(
    metastore: Metastore, table_id: TableId | None = None, level: BarrierLevel = BarrierLevel.QUORUM
) -> None:
    """Have the replicas of a table, or of every altered one, declare its columns, and fence them at the epoch of these.

    Raises ReplicasNotFenced where a quorum (or all, by `level`) of some range is left without a fence.
    """
    fences = Fences(metastore.storage)
    deadline = time.monotonic() + BARRIER_SECONDS
    while True:
        metadata = metastore.catch_up()
        barriers = [
            _barrier(metadata, table)
            for table in metadata.schema.tables.values()
            if table_id in (None, table.table_id) and table.alterations is not msgspec.UNSET
        ]
        fences.raise_for(metadata, barriers)
        left = [one for one in barriers if not fences.passed(metadata, one, level)]
        if not left:
            return
        if time.monotonic() > deadline:
            table = metadata.schema.tables[left[0].sides[0].table_id]
            raise ReplicasNotFenced(
                f"{table.full_name} has other columns since epoch {left[0].epoch}, and rows that were made for those "
                f"of before may still land: {fences.missing(metadata, left[0])}",
                hint="Submit the change again under its request id when these volumes answer",
            )
        time.sleep(PAUSE_SECONDS)


def _barrier(metadata: ClusterMetadata, table: Table) -> Barrier:
    """The replicas of each range, before and after what moves now."""
    assert table.alterations is not msgspec.UNSET
    sides = {
        Sides(table.table_id, tuple(sorted(placement.write_sets[0])), tuple(sorted(placement.write_sets[-1])))
        for placement in grouped(metadata.placements(table.table_id)).distinct
    }
    return Barrier(table.alterations.epoch, tuple(sorted(sides, key=lambda side: (side.old, side.new))))


def _changed(table: Table, changes: ColumnChanges) -> tuple[Column, ...]:
    """The columns after the changes. Raises Rejected (unknown-column)."""
    changes, fields = _parted(table, changes)
    before = table.numbered
    known = {column.name for column in before}
    named = (*changes.drop, *changes.rename, *changes.widen, *changes.comment, *changes.nullable)
    _require_known(table, named, known)
    twice = sorted(
        name for name in {*changes.drop} if name in {*changes.rename, *changes.widen, *changes.comment, *fields}
    )
    if twice:
        raise InvalidRequest(f"column {twice[0]!r} of {table.full_name} is to be dropped, and changed as well")
    whole = next(
        (column for column in before if column.fields is not msgspec.UNSET and column.name in changes.widen), None
    )
    if whole is not None:
        raise Rejected(
            Code.NARROWER_TYPE,
            f"column {whole.name!r} of {table.full_name} is {whole.type}, and cannot become another type as a whole",
            hint="Widen the fields in it one by one, as address.zip:bigint",
        )
    with_fields, last = columns_with(table, before, fields, table.last_column_id)
    columns = [
        msgspec.structs.replace(
            column,
            name=changes.rename.get(column.name, column.name),
            type=_plain(changes.widen.get(column.name, column.type)),
            nullable=column.nullable or column.name in changes.nullable,
            comment=_comment(changes.comment, column),
        )
        for column in with_fields
        if column.name not in changes.drop
    ]
    taken = {column.stored_name.lower() for column in before} | {one.stored_as.lower() for one in table.dropped}
    for number, column in enumerate(changes.add, last + 1):
        stored_as = column.name if column.name.lower() not in taken else f"{column.name}#{number}"
        while stored_as.lower() in taken:
            stored_as += "#"
        taken.add(stored_as.lower())
        columns.append(msgspec.structs.replace(column, type=_plain(column.type), column_id=number, stored_as=stored_as))
    _require_known(table, changes.order, {column.name for column in columns})
    if len(set(changes.order)) < len(changes.order):
        raise InvalidRequest(f"the order of columns of {table.full_name} names a column twice")
    places = {name: place for place, name in enumerate(changes.order)}
    return tuple(sorted(columns, key=lambda column: places.get(column.name, len(places))))


def _parted(table: Table, changes: ColumnChanges) -> tuple[ColumnChanges, dict[str, FieldRequest]]:
    """What is asked for of columns, and what of the fields in each, by its name of before."""
    before = {column.name: column for column in table.numbered}
    after = {changes.rename.get(name, name): column for name, column in before.items()}
    names_before = {changes.rename.get(name, name): name for name in before}
    parts: dict[str, dict[str, list[tuple[Path, Any]]]] = defaultdict(lambda: defaultdict(list))

    def is_column(kind: str, text: str, value: Any = None, known: Mapping[str, Column] = before) -> bool:
        """Whether a text names a column; what names a field is noted."""
        where = named(text, known)
        if where.path:
            name = where.column if known is before else names_before[where.column]
            parts[name][kind].append((where.path, value))
        return not where.path

    of_columns = msgspec.structs.replace(
        changes,
        add=tuple(
            msgspec.structs.replace(new, name=new_name(table, new.name))
            for new in changes.add
            if is_column("add", new.name, new)
        ),
        drop=tuple(text for text in changes.drop if is_column("drop", text)),
        rename={text: name for text, name in changes.rename.items() if is_column("rename", text, name)},
        widen={text: type_ for text, type_ in changes.widen.items() if is_column("widen", text, type_)},
        comment={text: said for text, said in changes.comment.items() if is_column("comment", text, said)},
        nullable=tuple(text for text in changes.nullable if is_column("nullable", text)),
        order=tuple(text for text in changes.order if is_column("order", text, known=after)),
    )
    return of_columns, {name: request_of(asked) for name, asked in parts.items()}


def _generated(table: Table, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns after the changes, where new ones that are generated say what they read. Raises Rejected."""
    known = {column.column_id: column for column in table.generated}
    after = msgspec.structs.replace(table, columns=columns, alterations=Alterations(0, len(columns), 0))
    if all(column.column_id in known for column in after.generated):
        return columns
    new = {column.column_id: column for column in _only_new(after, known).generated}
    return tuple(new.get(column.column_id, column) for column in columns)


def _only_new(after: Table, known: Collection[int | msgspec.UnsetType]) -> Table:
    """A table whose new generated columns are read; those that it had are what they were."""
    plain = tuple(
        msgspec.structs.replace(column, generated=msgspec.UNSET) if column.column_id in known else column
        for column in after.columns
    )
    return with_generated(msgspec.structs.replace(after, columns=plain))


def _checks(table: Table, columns: tuple[Column, ...], changes: ColumnChanges) -> tuple[Check, ...] | msgspec.UnsetType:
    """The checks after the changes; nothing is said of them where they stay. Raises Rejected (unknown-check, …)."""
    added = {} if changes.add_checks is msgspec.UNSET else changes.add_checks
    dropped = () if changes.drop_checks is msgspec.UNSET else changes.drop_checks
    if not added and not dropped:
        return msgspec.UNSET
    checks_of(table, dropped)
    kept = [check for check in table.checked if check.name not in dropped]
    after = msgspec.structs.replace(table, columns=columns, alterations=Alterations(0, len(columns), 0))
    return (*kept, *(new_check(name, predicate, after) for name, predicate in added.items()))


def checks_of(table: Table, names: Sequence[str]) -> list[Check]:
    """The checks of a table with these names. Raises Rejected (unknown-check)."""
    known = {check.name: check for check in table.checked}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Rejected(
            Code.UNKNOWN_CHECK,
            f"{table.full_name} has no check {', '.join(unknown)}",
            hint=f"It has {', '.join(sorted(known))}" if known else "It has none",
        )
    return [known[name] for name in names]


def _require_known(table: Table, names: Sequence[str], known: set[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Rejected(
            Code.UNKNOWN_COLUMN,
            f"{table.full_name} has no column {', '.join(unknown)}",
            hint=f"It has {', '.join(sorted(known))}",
        )


def _plain(type_: str) -> str:
    return " ".join(type_.split())


def _comment(comments: Mapping[str, str], column: Column) -> str | msgspec.UnsetType:
    if column.name not in comments:
        return column.comment
    return comments[column.name] or msgspec.UNSET
