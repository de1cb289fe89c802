"""Files into a table, in named batches: a load that was killed goes on where it was, and no row lands twice."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.exchange.casting import Fitted, fit
from epochlake.jobs.exchange.row_files import Format
from epochlake.jobs.exchange.sources import Part, Source, parts_of, sources_of
from epochlake.jobs.gate.batches import batch_id, decided
from epochlake.jobs.gate.gate import require_name
from epochlake.jobs.gate.writing import Written
from epochlake.jobs.printing import plural
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.showing import Shown

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


class LoadedPart(Shown, msgspec.Struct, frozen=True):
    """A part of a file that was written. `batch`: its name, None without one; `written`: what the gate said.

    `filled`: columns that the file lacks; `defaults`: of those the ones that have a default, with its text. Others are
    null.
    """

    file: str
    batch: str | None
    casts: dict[str, str]
    filled: tuple[str, ...]
    written: Written
    defaults: dict[str, str] = {}


Progress = Callable[[LoadedPart, int, int], None]
"""Called after each part, with the bytes of the files that are through and those of all."""


def load_files(
    cluster: Cluster,
    table: str,
    files: Iterable[str | os.PathLike[str]],
    *,
    batch: str | None = None,
    consistency: str | None = None,
    delete: bool = False,
    format_: Format | None = None,
    datacenter: str | None = None,
    progress: Progress = lambda part, done, of: None,
) -> list[LoadedPart]:
    """Write the rows of files to a table, or delete by their keys; one write for each 500,000 rows.

    `files`: names of files, directories and patterns. With `batch` each part has a name that is made of it, of the
    file's own name and of its number, so a load that ended half-way is called again with the same arguments, and goes
    on. A file of which a row does not fit is refused before any of it lands. Raises InvalidRequest, and as
    `Cluster.write`; the files before the one that fails have landed, as the error says.
    """
    require_name(batch)
    target = cluster.catch_up().table(table)

    def require_the_same() -> None:
        # What has landed in a table that was dropped has not landed in the one that has its name now.
        metadata = cluster.catch_up()
        if metadata.table(table).table_id != target.table_id:
            renamed = metadata.schema.tables.get(target.table_id)
            if renamed is not None:
                raise InvalidRequest(
                    f"{table} is another table by now: what was loaded until then is in {renamed.full_name}",
                    hint=f"Its keyspace was renamed: load it into {renamed.full_name} again, with the same --batch",
                )
            raise InvalidRequest(f"{table} was dropped and made anew while it was loaded", hint="Load it again, whole")

    named = list(files)
    sources = sources_of(named, format_)
    operation = "delete" if delete else "write"

    def is_begun(name: str) -> bool:
        of = batch_id(target.table_id, operation, name)
        return decided(cluster.storage, cluster.root.batches, of).generations > 0

    if batch is not None and target.append_only and len(named) > 1 and is_begun(batch):
        raise InvalidRequest(
            f"the batch {batch!r} was a load of one file, and now there are {len(sources)}: its rows could come twice",
            hint="Load that file alone under this name, and the others under another one",
        )
    may_come_twice = target.append_only and batch is None
    if may_come_twice and (len(sources) > 1 or delete):
        raise _unnamed(target, "several files")
    sizes = [identity[1] if (identity := _identity(source)) else 0 for source in sources]
    done: list[LoadedPart] = []
    change = cluster.delete if delete else cluster.write
    for number, source in enumerate(sources):
        try:
            for part, fitted, rows in _fitting(source, target, delete=delete, in_one_write=may_come_twice):
                name = part.batch(batch)
                former = None if batch is None else part.former_batch(batch)
                if former is not None and is_begun(former):
                    name = former
                require_the_same()
                written = change(table, rows, consistency=consistency, batch=name, datacenter=datacenter)
                done.append(LoadedPart(str(source.path), name, fitted.casts, fitted.filled, written, fitted.defaults))
                require_the_same()
                progress(done[-1], sum(sizes[: number + 1]), sum(sizes))
        except EpochlakeError as error:
            if len(sources) > 1 or done:
                error.reason = f"{source.path}: {error.reason} ({_so_far(done, source)})"
            raise
    return done


def _unnamed(table: Table, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{table.full_name} is append-only: rows of {what} may come twice if the load ends half-way",
        hint="Name the load by --batch",
    )


def _fitting(
    source: Source, table: Table, *, delete: bool, in_one_write: bool
) -> Iterator[tuple[Part, Fitted, object]]:
    """The parts of a file, as the table declares them; all of a file of several are looked at before the first is
    given. With `in_one_write` a file of several is refused.
    """
    before = _identity(source)
    parts = parts_of(source, table.columns)
    first = _fitted(next(parts), table, delete)
    second = next(parts, None)
    if second is None:
        _require_unchanged(source, before)
        yield first
        return
    if in_one_write:
        raise _unnamed(table, "a file that is several writes")
    _fitted(second, table, delete)
    for part in parts:
        _fitted(part, table, delete)
    for part in parts_of(source, table.columns):
        _require_unchanged(source, before)
        yield _fitted(part, table, delete)


def _fitted(part: Part, table: Table, delete: bool) -> tuple[Part, Fitted, object]:
    rows, fitted = fit(part.rows, table, part.first, keys_only=delete)
    return part, fitted, rows


def _require_unchanged(source: Source, before: tuple[int, int, int] | None) -> None:
    """Raises InvalidRequest for a file that may have been half written when it was read, or has been taken away."""
    if _identity(source) != before:
        raise InvalidRequest(f"the file {source.path} was changed while it was loaded", hint="Load it again, whole")


def _identity(source: Source) -> tuple[int, int, int] | None:
    """What changes with a file; None for one that is not there, and for what is no file of a disk, as a pipe."""
    try:
        status = source.path.stat()
    except OSError:  # reading it says what is wrong
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _so_far(done: list[LoadedPart], source: Source) -> str:
    files = len({part.file for part in done} - {str(source.path)})
    of_it = sum(part.written.rows for part in done if part.file == str(source.path))
    landed = f"{plural(files, 'file')} before it {'has' if files == 1 else 'have'} landed"
    return landed + (f", and {of_it:,} of its rows" if of_it else "")
