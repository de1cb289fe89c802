"""What is loaded: files by their names, directories and patterns, each read in parts of the same rows whenever it is
read.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from epochlake.jobs.exchange.row_files import SUFFIXES, Format, batches_of, format_of
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest

ROWS_OF_PART = 500_000
"""A part is one write and is held in memory. Never another number: names of batches say which part of a file they are.
"""


class Source(NamedTuple):
    """A file to load. `name`: what tells it from others of the same load; empty for one that was named by itself."""

    path: Path
    name: str
    format: Format


class Part(NamedTuple):
    """Some rows of a source, from the row `first` on; `number` counts its parts from 0."""

    source: Source
    number: int
    first: int
    rows: pa.Table

    def batch(self, of: str | None) -> str | None:
        """The name of its batch in a load of this name: the same in each try, of no time and no place."""
        if of is None:
            return None
        words = [of, *([self.source.name] if self.source.name else []), *([str(self.number)] if self.number else [])]
        return "/".join(words)


def sources_of(files: Iterable[str | os.PathLike[str]], format_: Format | None = None) -> list[Source]:
    """The files that are named: by themselves, by a directory (whatever lies below it, but hidden ones) or a pattern.

    Raises InvalidRequest for one that is not there or may not be read, that is named twice, or whose format is not
    known.
    """
    try:
        return _sources_of(files, format_)
    except OSError as error:  # of a directory on the way
        raise InvalidRequest(
            f"{error.filename} cannot be read: {error.strerror}", hint="Check owner and mode"
        ) from error


def _sources_of(files: Iterable[str | os.PathLike[str]], format_: Format | None) -> list[Source]:
    named = [os.fspath(file) for file in files]
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
            found.append(Source(path, path.name if len(named) > 1 else "", format_of(path, format_)))
        else:
            matching = sorted(Path(one) for one in glob.glob(name, recursive=True) if Path(one).is_file())
            if not matching:
                raise InvalidRequest(f"no file is named as {name}", hint="Check the pattern, and put it into quotes")
            root = os.path.commonpath([str(one.parent) for one in matching])
            found += [
                Source(one, Path(os.path.relpath(one, root)).as_posix(), format_of(one, format_)) for one in matching
            ]
    twice = [one.name or str(one.path) for one in found if sum(other.name == one.name for other in found) > 1]
    if twice:
        raise InvalidRequest(
            f"two of the files are both called {twice[0]}, and would be one batch", hint="Load them one after the other"
        )
    return found


def parts_of(source: Source, columns: Sequence[Column]) -> Iterator[Part]:
    """The rows of a file in parts, in its order; at least one part, if it has no rows. Raises InvalidRequest."""
    for number, rows in enumerate(in_parts(*batches_of(source.path, source.format, columns))):
        yield Part(source, number, number * ROWS_OF_PART, rows)


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


def _is_hidden(path: Path) -> bool:
    """As Spark and others leave beside rows: `_SUCCESS`, `.crc`, `_delta_log`."""
    return any(part.startswith((".", "_")) for part in path.parts)
