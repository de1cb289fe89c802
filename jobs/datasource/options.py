"""Options of the data source, and the cluster that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from epochlake.jobs.cluster import Cluster, open_cluster
from epochlake.jobs.gate.moments import micros_of
from epochlake.jobs.replicas.change_readers import require_reader_name
from epochlake.metastore import configuration as configurations
from epochlake.metastore.configuration import Configuration
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest, words_of
from epochlake.placement.near_names import nearest

OF_CHANGES = ("after", "upTo", "reader", "before", "generation", "stream")
"""Options of a read whose option `changes` is true."""

READ = (
    "conf",
    "root",
    "consistency",
    "datacenter",
    "columns",
    "where",
    "keys",
    "timestampAsOf",
    "epoch",
    "startingEpoch",
    "changes",
    *OF_CHANGES,
)
"""Options of a read, spelt as the documentation does; Spark hands them over in any case."""

WRITTEN = ("conf", "root", "consistency", "datacenter", "batch", "delete", "replaceWhere")
OF_SPARK = ("path", "table", "checkpointlocation", "queryname")
"""What Spark adds to the options of a user. With those of an entry of its catalog, which has `settings`, come others.
"""

MOST = (1 << 63) - 1
"""The highest epoch and position that the log and Spark can count to."""

SYSTEM = "system."
"""Begins the names of tables that are of the metadata. No keyspace gets this name; one that has it from before is read
by a pipeline.
"""


class ReadOptions(msgspec.Struct, frozen=True):
    """What `spark.read.format("epochlake").options(…).load(table)` says, and nothing that it does not."""

    table: str
    conf: str | None = None
    root: str | None = None
    consistency: str | None = None
    datacenter: str | None = None
    columns: tuple[str, ...] | None = None
    epoch: int | None = None
    starting_epoch: int | None = None
    where: str | None = None
    keys: str | None = None
    settings: str | None = None
    as_of: str | None = None
    changes: bool = False
    after: int | None = None
    up_to: int | None = None
    reader: str | None = None
    before: bool = False
    generation: int | None = None
    stream: int | None = None

    @property
    def metadata_table(self) -> str | None:
        """The table of the metadata that is asked for; None for a table of rows."""
        return self.table.removeprefix(SYSTEM) if self.table.startswith(SYSTEM) else None

    def open(self) -> Cluster:
        """The cluster, for a `with`. Raises as `open_cluster`."""
        return _opened(self.conf, self.root, self.settings)


class WriteOptions(msgspec.Struct, frozen=True):
    """What `df.write.format("epochlake").options(…).save(table)` says, and nothing that it does not."""

    table: str
    conf: str | None = None
    root: str | None = None
    consistency: str | None = None
    datacenter: str | None = None
    batch: str | None = None
    deletes: bool = False
    settings: str | None = None
    replace_where: str | None = None

    def open(self) -> Cluster:
        """The cluster, for a `with`. Raises as `open_cluster`."""
        return _opened(self.conf, self.root, self.settings)


def _opened(conf: str | None, root: str | None, settings: str | None) -> Cluster:
    if settings is None:
        return open_cluster(configurations.load(conf, root=root))
    try:
        configuration = msgspec.json.decode(settings, type=decodable(Configuration))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(
            f"the option 'settings', which is for views that `attach` makes, cannot be read: {words_of(error)}",
            hint="Give the option root or conf, or call epochlake.attach(spark, cluster)",
        ) from None
    return open_cluster(configuration)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write; their names count in any case. Raises InvalidRequest."""
    options, table = _known(given, "write", 'Name it: .save("keyspace.table")')
    if table.startswith(SYSTEM):
        raise InvalidRequest(
            f"{table} is of the metadata, which is changed by committing epochs, not by writing rows",
            hint="Name a table of rows",
        )
    deletes = options.get("delete", "false").lower()
    if deletes not in ("true", "false"):
        raise InvalidRequest(f"the option 'delete' is {deletes!r}", hint="Give true or false")
    return WriteOptions(
        table,
        options.get("conf"),
        options.get("root"),
        options.get("consistency"),
        options.get("datacenter"),
        options.get("batch"),
        deletes == "true",
        options.get("settings"),
        options.get("replacewhere"),
    )


def _known(given: Mapping[str, str], kind: Literal["read", "write"], advice: str) -> tuple[dict[str, str], str]:
    """The options by their names, and the table that they name."""
    options = {name.lower(): value for name, value in given.items()}
    if "paths" in options:  # Spark's, of .load([…])
        raise InvalidRequest("a read is of one table", hint="Load each, and unite the DataFrames")
    known, others = (READ, WRITTEN) if kind == "read" else (WRITTEN, READ)
    for name, asked in zip(options, given, strict=True):
        if name not in (*map(str.lower, known), *OF_SPARK) and "settings" not in options:
            raise _unknown(asked, kind, known, others)
    for name in ("conf", "root"):
        place = options.get(name)
        if place is not None and "://" not in place and not place.startswith("/"):
            raise InvalidRequest(
                f"the option {name!r} is {place!r}, which counts from a directory that Spark's processes choose",
                hint="Give the whole path",
            )
    table = options.get("table") or options.get("path", "")
    if not table:
        raise InvalidRequest("it was not said which table it is about", hint=advice)
    return options, table


def _unknown(asked: str, kind: str, known: Sequence[str], others: Sequence[str]) -> InvalidRequest:
    """The error for an option that there is not. Spark may have put its name into lower case."""
    near = nearest(asked, known)
    of_others = {one.lower(): one for one in others}.get(asked.lower())
    if of_others is not None:
        of = "a write" if kind == "read" else "a read"
        return InvalidRequest(f"the option {of_others!r} is for {of}, and this is a {kind}", hint="Leave it out")
    return InvalidRequest(
        f"a {kind} of the data source epochlake has no option {asked!r}",
        hint=f"Did you mean {near!r}?" if near else f"Its options: {', '.join(known)}",
    )


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a read; their names count in any case. Raises InvalidRequest."""
    options, table = _known(given, "read", 'Name it: .load("keyspace.table")')
    # With a stream of a generation 0 is before all of its changes; without one no change was ever there.
    first = 0 if "generation" in options else 1
    read = ReadOptions(
        table,
        options.get("conf"),
        options.get("root"),
        options.get("consistency"),
        options.get("datacenter"),
        _names(options.get("columns")),
        _epoch("epoch", options.get("epoch")),
        _epoch("startingEpoch", options.get("startingepoch"), first=0),  # of others streams begin at version 0
        options.get("where"),
        options.get("keys"),
        options.get("settings"),
        options.get("timestampasof"),
        _is_true("changes", options.get("changes", "false")),
        _position("after", options.get("after"), first),
        _position("upTo", options.get("upto"), first),
        options.get("reader"),
        _is_true("before", options.get("before", "false")),
        _part("generation", options.get("generation"), first=1),
        _part("stream", options.get("stream"), first=0),
    )
    if read.as_of is not None:
        micros_of(read.as_of)
    require_reader_name(read.reader)
    of_changes = [name for name in OF_CHANGES if name.lower() in options]
    if of_changes and not read.changes:
        raise InvalidRequest(
            f"the option {of_changes[0]!r} is for changes", hint='Give option("changes", True) as well'
        )
    if (read.generation is None) != (read.stream is None):
        one, lacks = ("generation", "stream") if read.stream is None else ("stream", "generation")
        raise InvalidRequest(
            f"the option {one!r} was given without the option {lacks!r}: a stream is one of a generation",
            hint=f"Give both; `epochlake changes generations {table}` lists them",
        )
    unfit = [name for name in _ROWS_ONLY if name.lower() in options and name != "columns"]
    if read.changes and (unfit or read.metadata_table is not None):
        raise InvalidRequest(
            f"changes of {table} cannot be read with the option {unfit[0]!r}"
            if unfit
            else f"{table} is of the metadata: its changes are the epochs of system.log",
            hint="Leave it out, and choose by .where(…)" if unfit else f"Stream {SYSTEM}log",
        )
    of_rows = [name for name in _ROWS_ONLY if name.lower() in options]
    if read.metadata_table is not None and of_rows:
        raise InvalidRequest(
            f"the option {of_rows[0]!r} is for tables of rows, and {table} is one of the metadata",
            hint="Leave it out, and choose by .select(…) and .where(…)",
        )
    if read.starting_epoch is not None and table != f"{SYSTEM}log":
        raise InvalidRequest(
            f"the option 'startingEpoch' is for the stream of {SYSTEM}log, and not for {table}",
            hint='Changes of a table begin after a position: option("after", …)' if read.changes else "Leave it out",
        )
    if read.metadata_table is None and read.epoch is not None:
        raise InvalidRequest(
            f"rows of {table} cannot be read as of an epoch: an epoch is a version of the metadata, not of rows",
            hint=f"Give a time, as timestampAsOf; or read {SYSTEM}tablets or another table of the metadata with it",
        )
    return read


_ROWS_ONLY = ("consistency", "datacenter", "columns", "where", "keys", "timestampAsOf")


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InvalidRequest(
            f"the option 'columns' is {text!r}, which leaves a name empty",
            hint="Give names with commas between them: id, carrier; or leave it out for all columns",
        )
    return names


def _is_true(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"the option {name!r} is {text!r}", hint="Give true or false")
    return text.lower() == "true"


def _position(name: str, text: str | None, first: int) -> int | None:
    if text is None:
        return None
    position = _whole(text)
    if position is None or position < first:
        raise InvalidRequest(
            f"the option {name!r} is {text!r}, which is no position",
            hint=f"Give a whole number from {first} on, as _position is; or leave the option out",
        )
    return position


def _part(name: str, text: str | None, first: int) -> int | None:
    if text is None:
        return None
    number = _whole(text)
    if number is None or number < first:
        raise InvalidRequest(
            f"the option {name!r} is {text!r}, which is no number of a {name}",
            hint=f"Give a whole number; the first {name} is {first}",
        )
    return number


def _epoch(name: str, text: str | None, first: int = 1) -> int | None:
    if text is None:
        return None
    epoch = _whole(text)
    if epoch is None or epoch < first:
        raise InvalidRequest(
            f"the option {name!r} is {text!r}, which is no epoch", hint="Give a whole number; the first epoch is 1"
        )
    return epoch


def _whole(text: str) -> int | None:
    """A number from 0 on that a bigint can hold; None for another text."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits.lstrip("0")) > len(str(MOST)) or int(digits) > MOST:
        return None
    return int(digits)
