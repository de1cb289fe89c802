"""What a merge does with each row of its source, beside the row of the table that has the same key (or none).

Pure: rows in, changes out. Of the clauses that a row fits the first one counts, as in SQL's MERGE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_conform import conform_arrow, conform_arrow_keys
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.jobs.gate.fitting import misfit, what_became
from epochlake.jobs.gate.merge_expressions import SOURCE, TARGET, expression_of
from epochlake.jobs.gate.merge_journal import MergeCounts
from epochlake.jobs.replicas.file_columns import filled
from epochlake.jobs.replicas.row_values import comparables, shown_rows
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import InvalidRequest, words_of
from msgspec import UNSET

Kind = Literal["update", "delete", "insert"]

EVERYTHING: Literal["everything"] = "everything"
"""In the place of values: every column of the table, from the column of the source with its name."""


class Clause(NamedTuple):
    """What is done with rows for which `condition` is true. `values`: by column; of a delete there are none."""

    kind: Kind
    values: Mapping[str, object] | Literal["everything"] = {}
    condition: object = None


class Changes(NamedTuple):
    """Rows to insert or to replace others, and keys to delete: all of them with the columns of the table."""

    upserts: pa.Table
    deletes: pa.Table
    counts: MergeCounts


def require_fitting_source(source: pa.Table, table: Table) -> pa.Table:
    """The source, its key columns with the types of the table. Raises InvalidRequest for a key that is null or comes
    twice, or that it does not have.
    """
    keys = conform_arrow_keys(source, table)
    for name in table.primary_key:
        if keys.column(name).null_count:
            raise InvalidRequest(f"the source of a merge into {table.full_name} has rows without {name}, of the key")
        source = source.set_column(source.column_names.index(name), name, keys.column(name))
    seen: set[object] = set()
    keys = source.select(list(table.primary_key))
    for number, one in enumerate(comparables(keys)):
        if one in seen:
            [key] = shown_rows(keys.slice(number, 1))
            raise InvalidRequest(
                f"two rows of the source of a merge into {table.full_name} have the key {key}, and nothing says which "
                "one counts",
                hint="Give one row for each key: add up or choose before",
            )
        seen.add(one)
    return source


def require_fitting_clauses(clauses: Sequence[Clause], table: Table) -> None:
    """Raises InvalidRequest for clauses that can never be applied to this table."""
    if not clauses:
        raise InvalidRequest(
            f"the merge into {table.full_name} has no clause, so that it would change nothing",
            hint='Say what is done: .when_matched_update({"n": "target.n + source.n"}), .when_not_matched_insert_all()',
        )
    if table.append_only:
        raise InvalidRequest(f"table {table.full_name} is append-only: its rows have no keys to merge by")
    names = [column.name for column in table.columns]
    for clause in clauses:
        if clause.values == EVERYTHING:
            continue
        unknown = [str(name) for name in clause.values if name not in names]
        if unknown:
            problems = [f"table {table.full_name} has no column {', '.join(unknown)}", *what_became(table, unknown)]
            raise InvalidRequest("; ".join(problems), hint=f"It has {', '.join(names)}")
        moved = [name for name in clause.values if name in table.primary_key and clause.kind == "update"]
        if moved:
            raise InvalidRequest(
                f"a merge into {table.full_name} cannot set {', '.join(moved)}: it is of the primary key",
                hint="A row with another key is another row: insert it, and delete this one",
            )


def require_all_columns(clauses: Sequence[Clause], source: pa.Table, table: Table) -> None:
    """That a clause for all columns finds them in the source, but for those that a write may leave out as well.

    Raises InvalidRequest naming each that it does not find.
    """
    if all(clause.values != EVERYTHING for clause in clauses):
        return
    lacking = [
        column.name
        for column in table.columns
        if column.name not in source.column_names and not table.may_be_left_out(column)
    ]
    if lacking:
        became = what_became(table, source.column_names)
        raise InvalidRequest(
            f"the source of a merge into {table.full_name} has no column {', '.join(lacking)}, and a clause takes all "
            f"columns from it{''.join(f'; {one}' for one in became)}",
            hint='Give them, or name what is to be set: .when_matched_update({"n": "source.n"})',
        )


def asked(clauses: Sequence[Clause]) -> str:
    """What a merge does with its rows, as a text that is the same for the same clauses. Raises InvalidRequest."""
    return "\n".join(
        " ".join(
            (
                clause.kind,
                "" if clause.condition is None else f"if {expression_of(clause.condition)}",
                EVERYTHING
                if clause.values == EVERYTHING
                else ", ".join(
                    f"{name}: {expression_of(value, f'a merge sets column {name} to ')}"
                    for name, value in sorted(clause.values.items())
                ),
            )
        )
        for clause in clauses
    )


def changes(source: pa.Table, target: pa.Table, clauses: Sequence[Clause], table: Table) -> Changes:
    """What the clauses make of `source` (as `require_fitting_source` gives it) and the rows of `target` with its keys.

    Raises InvalidRequest for expressions that cannot be applied, and for values that a column cannot hold.
    """
    of = _matches(source, target, table)
    matched = np.flatnonzero(of >= 0)
    beside = _joined(source, target, matched, of[matched])
    alone = _renamed(source, SOURCE).take(pa.array(np.flatnonzero(of < 0)))
    upserts: list[pa.Table] = []
    deletes: list[pa.Table] = []
    counts = {"update": 0, "delete": 0, "insert": 0}
    for clause in clauses:
        rows = alone if clause.kind == "insert" else beside
        applies = _true(clause.condition, rows, table)
        chosen, rest = rows.filter(applies), rows.filter(pc.invert(applies))
        alone, beside = (rest, beside) if clause.kind == "insert" else (alone, rest)
        counts[clause.kind] += chosen.num_rows
        if clause.kind == "delete":
            keys = {name: chosen.column(TARGET + name) for name in table.primary_key}
            deletes.append(conform_arrow_keys(pa.table(keys), table))
        else:
            upserts.append(_made(clause, chosen, table))
    nothing = pa.schema([(column.name, arrow_type(column.type)) for column in table.columns]).empty_table()
    return Changes(
        pa.concat_tables([nothing, *upserts]),
        pa.concat_tables([nothing, *deletes]),
        MergeCounts(inserted=counts["insert"], updated=counts["update"], deleted=counts["delete"]),
    )


def _matches(source: pa.Table, target: pa.Table, table: Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row of the source the number of the target's row with its key; -1: there is none."""
    keys = list(table.primary_key)
    rows = {key: number for number, key in enumerate(comparables(target.select(keys)))}
    found = [rows.get(key, -1) for key in comparables(source.select(keys))]
    return np.array(found, dtype=np.int64)


def _joined(source: pa.Table, target: pa.Table, left: np.ndarray, right: np.ndarray) -> pa.Table:
    ours = _renamed(source, SOURCE).take(pa.array(left))
    theirs = _renamed(target, TARGET).take(pa.array(right))
    return pa.table({name: rows.column(name) for rows in (ours, theirs) for name in rows.column_names})


def _renamed(rows: pa.Table, prefix: str) -> pa.Table:
    return rows.rename_columns([prefix + name for name in rows.column_names])


def _true(condition: object, rows: pa.Table, table: Table) -> pa.ChunkedArray:
    """For which rows a condition is true; null is not."""
    if condition is None:
        return pa.chunked_array([pa.array(np.ones(rows.num_rows, dtype=bool))])
    found = _computed({"condition": condition}, rows, table).column(0)
    if not pa.types.is_boolean(found.type) and not pa.types.is_null(found.type):
        raise InvalidRequest(
            f"the condition {condition!r} of a merge into {table.full_name} gives {found.type}",
            hint="Compare something: 'source.n > target.n'",
        )
    return found.cast(pa.bool_()).fill_null(False)


def _made(clause: Clause, rows: pa.Table, table: Table) -> pa.Table:
    """Whole rows of the table: what the clause gives, and for the rest what is there, or the default, or null.

    Generated columns are computed anew, also those of rows that were there before them.
    """
    values = clause.values
    if values == EVERYTHING:
        values = {column.name: pc.field(SOURCE + column.name) for column in table.columns}
        # Those that are left out may be (`require_all_columns`).
        values = {name: value for name, value in values.items() if SOURCE + name in rows.column_names}
        values = {k: v for k, v in values.items() if clause.kind == "insert" or k not in table.primary_key}
    given = _computed(values, rows, table)
    columns = {}
    for column in table.columns:
        if column.name in given.column_names:
            columns[column.name] = _narrowed(given.column(column.name), column, table)
        elif column.generated is not UNSET:
            continue  # it is computed of what the row is now
        elif clause.kind == "update":
            columns[column.name] = rows.column(TARGET + column.name)
        elif column.name in table.primary_key:
            columns[column.name] = rows.column(SOURCE + column.name)
        else:
            columns[column.name] = pa.chunked_array([filled(column, rows.num_rows)])
    made = conform_arrow(pa.table(columns), table)
    if clause.kind == "insert":
        for name in table.primary_key:
            if not made.column(name).equals(rows.column(SOURCE + name)):
                raise InvalidRequest(
                    f"a merge into {table.full_name} inserts a row with another {name} than its source has",
                    hint="Leave the key out of the values: it is the source's",
                )
    return made


def _narrowed(values: pa.ChunkedArray, column: Column, table: Table) -> pa.ChunkedArray:
    """What was computed with wider numbers than the column has, where each value fits: sums of ints are bigints."""
    wanted = arrow_type(column.type)
    whole = pa.types.is_integer(wanted) and pa.types.is_integer(values.type)
    exact = pa.types.is_decimal(wanted) and (pa.types.is_decimal(values.type) or pa.types.is_integer(values.type))
    if not (whole or exact) or values.type == wanted:
        return values
    try:
        return values.cast(wanted)
    except pa.ArrowException as error:
        said = f"column {column.name} is {column.type}, and is set to a value that this cannot hold: {words_of(error)}"
        raise misfit(table, [said]) from error


def _computed(values: Mapping[str, object], rows: pa.Table, table: Table) -> pa.Table:
    if not values:
        return pa.table({})
    expressions = [expression_of(value) for value in values.values()]
    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
        acero.Declaration("project", acero.ProjectNodeOptions(expressions, list(values))),
    ]
    try:
        return acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidRequest(
            f"a clause of the merge into {table.full_name} cannot be computed: {words_of(error)}",
            hint=f"There are {', '.join(rows.column_names)}",
        ) from error
