"""The tokens of data files that this process has read, kept in memory.

Files never change, and every read that merges needs their tokens: those of a large file again and again, as often as
something small is written beside it. Files that leave them out have them hashed anew each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from epochlake.jobs.replicas.files import DataFile
from numpy.typing import NDArray

MOST_KEPT = 32 << 20
"""Bytes of tokens that are kept, eight for each row; of files that nobody has asked for the longest they go first."""

FileKey = tuple[str, int, int]
"""Path, bytes and rows. A piece of a file that replicas have cut, each for itself, has the same rows with these."""


class KnownTokens:
    """Tokens of whole files, in the order of the rows, up to `most` bytes; kept by a storage. Safe from several
    threads.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._tokens: OrderedDict[FileKey, NDArray[np.int64]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, file: DataFile) -> NDArray[np.int64] | None:
        """The tokens of a file: int64 array of shape (rows,), not to be changed; None where they are not kept."""
        key = _key(file)
        with self._lock:
            tokens = self._tokens.get(key)
            if tokens is not None:
                self._tokens.move_to_end(key)
            return tokens

    def clear(self) -> None:
        """Keep none of those that are kept."""
        with self._lock:
            self._tokens.clear()
            self._size = 0

    def put(self, file: DataFile, tokens: NDArray[np.int64]) -> None:
        """Keep the tokens of a file: all of them, else nothing is kept."""
        if len(tokens) != file.rows or tokens.nbytes > self._most:
            return
        own = tokens.copy()  # what was read may be a part of more
        own.flags.writeable = False
        with self._lock:
            before = self._tokens.pop(_key(file), None)
            self._size += own.nbytes - (0 if before is None else before.nbytes)
            self._tokens[_key(file)] = own
            while self._size > self._most:
                self._size -= self._tokens.popitem(last=False)[1].nbytes


def _key(file: DataFile) -> FileKey:
    return file.path, file.size, file.rows
