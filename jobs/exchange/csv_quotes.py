"""Whether the quotes of a CSV are as they have to be (RFC 4180).

Arrow takes one that is never closed for a text that goes on, and the rows below it for a part of that text, and says
nothing. Python's reader of CSV says so when it is strict.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from epochlake.placement.errors import InvalidRequest

_CHUNK_BYTES = 1 << 20


def require_well_quoted(path: Path) -> None:
    """Raises InvalidRequest, with the line, for a row with a text whose quotes end nowhere, or before its cell ends.

    Raises OSError for a file that cannot be read. What is no file of a disk is not looked at: it can be read once.
    """
    if not path.is_file() or not holds(path, b'"'):
        return
    # Of the process: a text may be as long as it likes, as it may for Arrow.
    csv.field_size_limit(sys.maxsize)
    begins = 1
    # Whether it is UTF-8 Arrow says.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            for _ in rows:
                begins = rows.line_num + 1
        except csv.Error as error:
            raise InvalidRequest(
                f"the file {path} cannot be read as csv: in the row that begins in line {begins} quotes are not "
                f"closed, or closed too early ({error})",
                hint='Close them; a quote in a text is written twice: "5"" pipe"',
            ) from error


def holds(path: Path, *texts: bytes) -> bool:
    """Whether one of a few short texts is in a file."""
    # Not mapped into memory: where somebody cuts such a file off, the process ends by a signal.
    most = max(map(len, texts))
    before = b""
    with path.open("rb") as file:
        while read := file.read(_CHUNK_BYTES):
            looked_at = before + read
            if any(text in looked_at for text in texts):
                return True
            before = looked_at[len(looked_at) - most + 1 :]
    return False
