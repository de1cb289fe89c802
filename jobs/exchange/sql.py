"""SQL over tables without Spark: DuckDB asks, and each table comes as the stream of Arrow that a scan gives."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import InvalidRequest, words_of

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

BATCH_ROWS = 65_536

_LINE = re.compile(r"\s*LINE \d+: ")


def ask(
    cluster: Cluster, query: str, consistency: str | None = None, datacenter: str | None = None
) -> pa.RecordBatchReader:
    """The rows that a SELECT gives. Raises InvalidRequest for another statement, a name that is no table, or a mistake
    in it; and as `Cluster.scan`.

    A table that is named once is streamed; one that is named more often is read once and kept by DuckDB, on a disk
    where it is large. Each is pinned when the query begins.
    """
    duckdb = _duckdb()
    connection = duckdb.connect()
    try:
        return _asked(connection, cluster, query, consistency, datacenter)
    except duckdb.Error as error:
        # What follows is the line of a query, not always of the one that was asked, and a mark below it.
        said = _LINE.split(words_of(error))[0]
        raise InvalidRequest(f"the query cannot be answered: {said}", hint=_advice_on(duckdb, error)) from error


def _advice_on(duckdb: Any, error: Exception) -> str:
    hints = {
        duckdb.CatalogException: "Name tables as keyspace.table",
        duckdb.BinderException: "`epochlake table show TABLE` has the columns and their types",
        duckdb.IOException: "A file is named in quotes, by a path that counts from the working directory",
        duckdb.ConversionException: "Compare a column with values of its type, or cast it: TRY_CAST(… AS BIGINT)",
    }
    return next((hint for kind, hint in hints.items() if isinstance(error, kind)), "")


def _asked(
    connection: Any, cluster: Cluster, query: str, consistency: str | None, datacenter: str | None
) -> pa.RecordBatchReader:
    connection.execute("SET TimeZone = 'UTC'")
    named = Counter(_names(connection, query))
    metadata = cluster.catch_up()
    tables = {name: metadata.table(f"{name[0]}.{name[1]}") for name in named}
    needed = _columns_needed(query, tables)
    for number, (name, table) in enumerate(tables.items()):
        rows = cluster.scan(table.full_name, columns=needed.get(name), consistency=consistency, datacenter=datacenter)
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(name[0])}")
        connection.register(f"rows_{number}", rows)
        kind = "VIEW" if named[name] == 1 else "TABLE"
        connection.execute(f"CREATE {kind} {_quoted(*name)} AS SELECT * FROM rows_{number}")
    result = connection.sql(query)
    _require_what_arrow_has(result)
    found = result.to_arrow_reader(BATCH_ROWS)
    schema = _told_apart(found.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        with connection:
            for batch in found:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _require_what_arrow_has(result: Any) -> None:
    """Raises InvalidRequest for types of which DuckDB hands on other values, and says nothing: a `UHUGEINT` that is too
    large comes as a negative number, a `TIMETZ` without its zone.
    """
    for name, type_ in zip(result.columns, map(str, result.types), strict=True):
        for other in ("UHUGEINT", "TIME WITH TIME ZONE"):
            if other in type_:
                raise InvalidRequest(
                    f"column {name} of the result is {type_}, and Arrow has no {other}", hint="Cast it: CAST(… AS TEXT)"
                )


def _told_apart(schema: pa.Schema) -> pa.Schema:
    """The columns of a result with names of their own, as DuckDB itself gives them: the second `n` is `n_1`.

    A row that is shown, and most readers of files, have one value by a name.
    """
    given: list[str] = []
    for name in schema.names:
        number, own = 0, name
        while own in given or (number and own in schema.names):
            number += 1
            own = f"{name}_{number}"
        given.append(own)
    return pa.schema([field.with_name(name) for field, name in zip(schema, given, strict=True)], schema.metadata)


def _names(connection: Any, query: str) -> list[tuple[str, str]]:
    """Each table that a query names, as often as it does; names without a keyspace are those of the query itself."""
    # All of a result is fetched: DuckDB 2 takes no other query before.
    [(told,)] = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [query]).fetchall()
    parsed = json.loads(told)
    if parsed.get("error"):
        said = str(parsed.get("error_message", "")).rstrip(" !.")
        raise InvalidRequest(
            f"the query cannot be read: {said}", hint='Write one SELECT, as "SELECT count(*) FROM air.flights"'
        )
    if len(parsed["statements"]) != 1:
        raise InvalidRequest("the query is not one statement", hint="Ask one SELECT at a time")
    return list(_tables_in(parsed))


def _tables_in(node: object) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE" and node.get("schema_name"):
            if node.get("catalog_name"):
                raise InvalidRequest(
                    f"{node['catalog_name']}.{node['schema_name']}.{node['table_name']} has three parts",
                    hint="Name tables as keyspace.table",
                )
            yield node["schema_name"], node["table_name"]
        for value in node.values():
            yield from _tables_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from _tables_in(value)


def _columns_needed(query: str, tables: dict[tuple[str, str], Table]) -> dict[tuple[str, str], list[str]]:
    """The columns that a query reads, by table, as DuckDB plans it over empty tables; all of one that is not told."""
    with _duckdb().connect() as planning:
        # By what is in them empty tables would be left out of the plan; a scan that filters does not name what it
        # filters.
        planning.execute("SET disabled_optimizers = 'statistics_propagation,empty_result_pullup,filter_pushdown'")
        for name, table in tables.items():
            empty = pa.schema([(column.name, arrow_type(column.type)) for column in table.columns]).empty_table()
            planning.register("empty", empty)
            planning.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(name[0])}")
            planning.execute(f"CREATE TABLE {_quoted(*name)} AS SELECT * FROM empty")
            planning.unregister("empty")
        plan = json.loads(planning.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()[0][1])
    found: dict[tuple[str, str], set[str]] = {}
    for scanned, columns in _scans_in(plan):
        found.setdefault(scanned, set()).update(columns)
    return {
        name: [column.name for column in table.columns if column.name in found[name]]
        for name, table in tables.items()
        if found.get(name) and found[name] <= {column.name for column in table.columns}
    }


def _scans_in(node: object) -> Iterator[tuple[tuple[str, str], list[str]]]:
    if isinstance(node, list):
        for value in node:
            yield from _scans_in(value)
    elif isinstance(node, dict):
        told = node.get("extra_info", {})
        if isinstance(told, dict) and "Table" in told:
            parts = str(told["Table"]).split(".")
            columns = told.get("Projections", [])
            if len(parts) == 3:
                yield (parts[1], parts[2]), [columns] if isinstance(columns, str) else list(columns)
        yield from _scans_in(node.get("children", []))


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise InvalidRequest(
            "SQL needs DuckDB, which is not installed", hint="Run `pip install 'epochlake[sql]'`"
        ) from error
    return duckdb
