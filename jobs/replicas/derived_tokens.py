"""Tokens that a file leaves out, as its keys say them: what compaction writes of a table whose key is one number.

A token is the hash of a key, and as if drawn by chance: stored, it is a seventh of a table of eight columns. Where each
key has a token of its own, whose hash takes a moment, a row group has the tokens of its first and its last row only. So
what footers say of its tokens, the least and the greatest, is what they said before. A file that has left some out
names the column that they are the hashes of (docs/decisions/146-derived-tokens.md).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.footers import column_number
from epochlake.metastore.metadata.model import Table
from epochlake.placement.column_hashing import hashes_of
from epochlake.placement.hashing import has_token_of_its_own
from epochlake.placement.tokens import TOKEN
from numpy.typing import NDArray

KEY = "epochlake.tokens-of"
"""Under it the footer of a file names the column, as the file calls it, whose hashes are the tokens left out."""


def has_derived_tokens(table: Table) -> bool:
    """Whether files of a table may leave tokens out."""
    types = {column.name: column.type for column in table.columns}
    return has_token_of_its_own([types[name] for name in table.primary_key])


def key_in_files(table: Table) -> str | None:
    """What files call the column whose hashes are a table's tokens; None where none may leave tokens out."""
    if not has_derived_tokens(table):
        return None
    return next(column.stored_name for column in table.columns if column.name == table.primary_key[0])


def noted(key: str | None) -> dict[str, str]:
    """What a footer says of a file that leaves tokens out."""
    return {} if key is None else {KEY: key}


def key_noted(notes: Mapping[bytes, bytes] | None) -> str | None:
    """The column that the notes of a footer name; None for a file that has all tokens."""
    key = (notes or {}).get(KEY.encode())
    return None if key is None else key.decode()


def without_tokens(rows: pa.Table, key: str) -> pa.Table:
    """A row group, in token order, with the tokens of its first and last row only.

    As it is where a token is not the hash of its key, so nothing is lost whatever the rows are.
    """
    tokens = rows.column(TOKEN).to_numpy()
    if (
        len(tokens) <= 2
        or not np.array_equal(tokens, hashes_of_keys(rows.column(key)))
        or np.any(tokens[1:] < tokens[:-1])
    ):
        return rows
    left_out = np.ones(len(tokens), dtype=bool)
    left_out[[0, -1]] = False
    return _with(rows, pa.array(tokens, mask=left_out))


def with_tokens(rows: pa.Table, key: str | None) -> pa.Table:
    """Rows as a file has them, with every token; `key`: the column that the file names."""
    if key is None or not rows.column(TOKEN).null_count:
        return rows
    return _with(rows, pa.array(hashes_of_keys(rows.column(key))))


def leaves_tokens_out(footer: pq.FileMetaData, group: int) -> bool:
    """Whether a row group of a file that names a column lacks tokens: then each is the hash of that column."""
    said = footer.row_group(group).column(column_number(footer, TOKEN)).statistics
    return said is not None and said.has_null_count and said.null_count > 0


def hashes_of_keys(keys: pa.ChunkedArray) -> NDArray[np.int64]:
    """The tokens of rows with these keys."""
    if keys.num_chunks == 1:
        return hashes_of([keys.chunk(0)], len(keys))
    return np.concatenate([np.zeros(0, np.int64), *(hashes_of([chunk], len(chunk)) for chunk in keys.chunks)])


def _with(rows: pa.Table, tokens: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(TOKEN), TOKEN, tokens)
