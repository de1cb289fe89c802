"""Tables of a cluster as views of a session, for SQL.

A catalog is code of the JVM, and Spark reads no table of its own catalog through a data source of Python.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.datasource.registering import register
from epochlake.jobs.datasource.source import FORMAT
from epochlake.jobs.datasource.table_function import register_function
from epochlake.metastore.storage import places
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import SparkSession

VIEWS = "spark.epochlake.views"
"""The setting of a session that says which views were made by `attach`."""


def attach(spark: SparkSession, cluster: Cluster, keyspaces: Iterable[str] | None = None) -> tuple[str, ...]:
    """Make the tables of a cluster views of the session, for SQL; the names of the views.

    A table is the view `` `air.flights` ``, and `flights` as well where no other keyspace has a table of that name, and
    the session no view and its current database no table. Tables whose names differ in nothing but capitals are no
    views, as Spark takes one for the other (`spark.sql.caseSensitive`). Rows may be inserted into them. A view shows
    what is committed when it is first queried: `attach` again shows what has come since, tables that were created
    included, and takes views of tables away that were dropped. The function `epochlake_read` reads this cluster's
    tables from then on. `keyspaces`: only these.
    Raises InvalidRequest.
    """
    register(spark)
    if not isinstance(cluster, Cluster):
        raise InvalidRequest(f"{cluster!r} is no open cluster", hint="Give what epochlake.open_cluster() gives")
    if isinstance(keyspaces, str):
        raise InvalidRequest("keyspaces are a list of names", hint=f"Write keyspaces=[{keyspaces!r}]")
    metadata = cluster.catch_up()
    schema = metadata.schema
    wanted = set(schema.keyspaces if keyspaces is None else keyspaces)
    if unknown := sorted(wanted - set(schema.keyspaces)):
        renamed = "; ".join(filter(None, map(metadata.renamed_hint, unknown)))
        hint = renamed or "`epochlake keyspace list` has them"
        raise InvalidRequest(f"there is no keyspace {', '.join(unknown)}", hint=hint)
    tables = sorted((table.keyspace, table.name) for table in schema.tables.values() if table.keyspace in wanted)
    mine = set(spark.conf.get(VIEWS, "").split("\n")) - {""}  # type: ignore[union-attr]
    views = _views_of(spark, tables, mine)
    for view in sorted(mine - set(views)):
        spark.catalog.dropTempView(view)
    settings = settings_of(cluster)
    register_function(spark, settings)
    settings = _text(settings)
    for view, full in views.items():
        options = f"settings {settings}, table {_text(full)}"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(view)} USING {FORMAT} OPTIONS ({options})")
    spark.conf.set(VIEWS, "\n".join(views))
    return tuple(views)


def _views_of(spark: SparkSession, tables: Sequence[tuple[str, str]], mine: Iterable[str]) -> dict[str, str]:
    """The views to make, and the table of each: none in the place of a table or a view that is the user's own, and none
    of tables that Spark does not tell from each other, as they differ in capitals.
    """
    folded: Callable[[str], str] = str if spark.conf.get("spark.sql.caseSensitive") == "true" else str.lower
    own = {folded(view) for view in mine}
    # A temporary view hides a table of the session's catalog that has its name.
    others = {
        folded(one.name) for one in spark.catalog.listTables() if not one.isTemporary or folded(one.name) not in own
    }
    times = Counter(folded(name) for keyspace, table in tables for name in (f"{keyspace}.{table}", table))
    views: dict[str, str] = {}
    for keyspace, table in tables:
        full = f"{keyspace}.{table}"
        views |= {name: full for name in (full, table) if times[folded(name)] == 1 and folded(name) not in others}
    return views


def settings_of(cluster: Cluster) -> str:
    """What opens this cluster in other processes, as JSON. Options of storage stay behind: they may be secrets."""
    configuration = cluster.configuration
    root = configuration.root if places.local_path(configuration.root) is None else os.path.abspath(configuration.root)
    shown = msgspec.structs.replace(
        configuration,
        root=root,
        storage=msgspec.structs.replace(configuration.storage, options={}),
    )
    return msgspec.json.encode(shown).decode()


def _quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
