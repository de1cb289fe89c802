"""Sealed files of row groups that are encoded already: bytes that were verified are put behind each other, and only the
footer is new (docs/decisions/055-row-groups-are-copied.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from epochlake.jobs.replicas.derived_tokens import noted
from epochlake.jobs.replicas.footer_groups import MAGIC, TAIL, Footer, Group, footer_of, moved_to, read_footer
from epochlake.jobs.replicas.sealing import sealed_writer
from epochlake.jobs.replicas.seals import FOOTER, SealedGroup, digest_of, footer_length, notes_of, with_value
from epochlake.jobs.replicas.thrift_compact import Field
from epochlake.metastore.storage import deadlines


def encoded_group(rows: pa.Table, key: str | None = None) -> tuple[bytes, Group]:
    """Rows as the bytes of one row group of a sealed file, and what a footer says of it. `key` as for `SealedWriter`.

    Raises UnknownLayout where such a row group cannot lie anywhere else.
    """
    sink = pa.BufferOutputStream()
    with sealed_writer(sink, rows.schema, "", key) as writer:
        writer.write(rows)
    data = sink.getvalue().to_pybytes()
    [group] = read_footer(data[-footer_length(data) : -TAIL]).groups
    return data[group.start : group.start + group.size], group


def schema_of(schema: pa.Schema) -> Field:
    """How a sealed file stores these columns, as its footer says it. Raises as `encoded_group`."""
    sink = pa.BufferOutputStream()
    with sealed_writer(sink, schema, ""):
        pass
    data = sink.getvalue().to_pybytes()
    return read_footer(data[-footer_length(data) : -TAIL]).schema


class SealedGroups:
    """Writes row groups that are encoded already as a sealed data file into `sink`; one that holds the columns of
    another file. Closing it does not close the sink. `key` as for `SealedWriter`: of the file that they come from.
    """

    def __init__(self, sink: pa.NativeFile, like: Footer, file_id: str, key: str | None = None) -> None:
        self._sink = sink
        self._like = like
        self._file_id = file_id
        self._key = key
        self._groups: list[Group] = []
        self._sealed: list[SealedGroup] = []
        self._size = len(MAGIC)
        sink.write(MAGIC)

    def add(self, data: Iterable[bytes], group: Group, digest: str) -> None:
        """Write the bytes of a row group, in order; whoever gives them raises when `digest` is not theirs."""
        self._groups.append(moved_to(group, self._size))
        self._sealed.append(SealedGroup(self._size, group.size, digest))
        for chunk in data:
            self._sink.write(chunk)
            self._size += len(chunk)
            deadlines.progress()

    def close(self) -> None:
        """Write the footer with the seal."""
        notes = {**noted(self._key), **notes_of(self._file_id, self._sealed)}
        footer = footer_of(self._like, self._groups, notes)
        self._sink.write(with_value(footer, FOOTER, digest_of(footer)))
