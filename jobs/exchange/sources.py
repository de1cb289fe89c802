"""What is loaded: files by their names, directories and patterns, each read in parts of the same rows whenever it is
read.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from epochlake.jobs.exchange.row_files import (
    SUFFIXES,
    Format,
    batches_of,
    format_of,
    path_of,
    require_readable_name,
)
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest

ROWS_OF_PART = 500_000
"""A part is one write and is held in memory. Never another number: names of batches say which part of a file they are.
"""


class Source(NamedTuple):
    """A file to load. `name`: what tells it from others of the same load; empty for one that was named by itself.

    `formerly`: what it is called as well, if a load had that name for it: by earlier versions, or with fewer files.
    """

    path: Path
    name: str
    format: Format
    formerly: str | None = None

    def placed(self, rows: pa.Table, columns: Collection[str] = ()) -> pa.Table:
        """The rows with what the directories say of them, as texts: `day=2026-01-01` on the way below what was named.

        Of directories above that only what is one of `columns`. What the file says itself counts more.
        """
        below = dict(_DIRECTORY.findall(self.name))
        above = {name: value for name, value in _DIRECTORY.findall(self.path.as_posix()) if name in columns}
        for name, value in (above | below).items():
            if unquote(name) not in rows.column_names:
                text = None if value == _NOTHING else unquote(value)
                rows = rows.append_column(unquote(name), pa.array([text] * len(rows), pa.string()))
        return rows


_DIRECTORY = re.compile(r"(?:^|(?<=/))([^/=]+)=([^/]*)(?=/)")
_NOTHING = "__HIVE_DEFAULT_PARTITION__"


class Part(NamedTuple):
    """Some rows of a source, from the row `first` on; `number` counts its parts from 0."""

    source: Source
    number: int
    first: int
    rows: pa.Table

    def batch(self, of: str | None) -> str | None:
        """The name of its batch in a load of this name: the same in each try, of no time and no place."""
        return None if of is None else self._called(of, self.source.name)

    def former_batch(self, of: str) -> str | None:
        """The name that its batch may have had in an earlier load of this name; None: no other one."""
        return None if self.source.formerly is None else self._called(of, self.source.formerly)

    def _called(self, of: str, name: str) -> str:
        return "/".join([of, *([name] if name else []), *([str(self.number)] if self.number else [])])


def sources_of(files: Iterable[str | os.PathLike[str]], format_: Format | None = None) -> list[Source]:
    """The files that are named: by themselves, by a directory (whatever lies below it, but hidden ones) or a pattern.

    Raises InvalidRequest for one that is not there or may not be read, that is named twice, whose format is not
    known, whose name is no text in UTF-8, or that is of a table which has a log of its files: not all that lie there
    are rows of it.
    """
    try:
        found = _sources_of(files, format_)
        for source in found:
            require_readable_name(str(source.path))
        for directory in sorted({source.path.absolute().parent for source in found}):
            _require_no_table(directory)
        return found
    except OSError as error:  # of a directory on the way
        raise InvalidRequest(
            f"{error.filename} cannot be read: {error.strerror}", hint="Check owner and mode"
        ) from error


def _name_of(file: object) -> str:
    # An empty text would be the working directory, with all files below it.
    if not isinstance(file, str | os.PathLike) or not (name := os.fspath(file)) or not isinstance(name, str):
        raise InvalidRequest(f"{file!r} is no name of a file", hint="Give a path, or a list of them")
    return name


def _sources_of(files: Iterable[str | os.PathLike[str]], format_: Format | None) -> list[Source]:
    given = [_name_of(file) for file in files]
    named = [str(path_of(name)) if "://" in name else name for name in given]
    found: list[Source] = []
    for name in named:
        path = Path(name)
        if path.is_dir():
            below = [Path(place) / file for place, _, names in os.walk(path) for file in names]
            inside = sorted(file for file in below if not _is_hidden(file.relative_to(path)))
            chosen = [file for file in inside if format_ is not None or file.suffix.lower() in SUFFIXES]
            found += [Source(file, file.relative_to(path).as_posix(), format_of(file, format_)) for file in chosen]
            if not chosen:
                raise InvalidRequest(
                    f"there is no file to load below {path}{f', of {len(inside)} that are there' if inside else ''}",
                    hint=f"Files end with {', '.join(sorted(SUFFIXES))}, or say --format",
                )
        elif path.exists() or not glob.has_magic(name):
            # A pattern that a shell has taken apart is one file today, and several tomorrow.
            names = (path.name, None) if len(named) > 1 else ("", path.name)
            found.append(Source(path, names[0], format_of(path, format_), names[1]))
        else:
            matching = sorted(Path(one) for one in glob.glob(name, recursive=True) if Path(one).is_file())
            if not matching:
                raise InvalidRequest(f"no file is named as {name}", hint="Check the pattern, and put it into quotes")
            # Below the directory that the pattern names whatever it finds: more may be found when it is tried again.
            # Earlier versions took what those that were found had in common.
            base, common = _base_of(path), os.path.commonpath([str(one.parent) for one in matching])
            for one in matching:
                name, formerly = (Path(os.path.relpath(one, below)).as_posix() for below in (base, common))
                found.append(Source(one, name, format_of(one, format_), None if name == formerly else formerly))
    twice = [one.name or str(one.path) for one in found if sum(other.name == one.name for other in found) > 1]
    if twice:
        raise InvalidRequest(
            f"two of the files are both called {twice[0]}, and would be one batch", hint="Load them one after the other"
        )
    return found


def _base_of(pattern: Path) -> Path:
    """The directory of a pattern up to its first part that is none by itself."""
    plain = list(takewhile(lambda part: not glob.has_magic(part), pattern.parts))
    return Path(*plain) if plain else Path()


def parts_of(source: Source, columns: Sequence[Column]) -> Iterator[Part]:
    """The rows of a file in parts, in its order; at least one part, if it has no rows. Raises InvalidRequest."""
    names = {column.name for column in columns}
    for number, rows in enumerate(in_parts(*batches_of(source.path, source.format, columns))):
        yield Part(source, number, number * ROWS_OF_PART, source.placed(rows, names))


def in_parts(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in tables of `ROWS_OF_PART` each, the last one of fewer."""
    held: list[pa.RecordBatch] = []
    count = 0
    is_first = True
    for batch in batches:
        while count + batch.num_rows > ROWS_OF_PART:
            fits = ROWS_OF_PART - count
            yield pa.Table.from_batches([*held, batch.slice(0, fits)], schema)
            held, count, is_first, batch = [], 0, False, batch.slice(fits)
        held.append(batch)
        count += batch.num_rows
    if count or is_first:
        yield pa.Table.from_batches(held, schema)


def _require_no_table(directory: Path) -> None:
    """Raises InvalidRequest where a directory, or one above it, belongs to a table with a log of its files."""
    for place in (directory, *directory.parents):
        if (place / "_delta_log").is_dir():
            raise InvalidRequest(
                f"{place} is a Delta table: its log says which of its files count",
                hint="Make a table of it: `epochlake table adopt`; or write to one by a pipeline, of spark.read",
            )
        if (place / "_spark_metadata").is_dir() or (place / ".hoodie").is_dir() or _is_iceberg(place):
            raise InvalidRequest(
                f"{place} is a stream's output, or a table of Iceberg or Hudi: its log says which of its files count",
                hint="Write its rows by a pipeline: pipeline.write(spark.read…, …, batch=…)",
            )


def _is_iceberg(place: Path) -> bool:
    return any((place / "metadata").glob("*.metadata.json"))


def _is_hidden(path: Path) -> bool:
    """As Spark and others leave beside rows: `_SUCCESS`, `.crc`, `_delta_log`."""
    return any(part.startswith((".", "_")) for part in path.parts)
