"""Whether the quotes of a CSV are as they have to be: Arrow takes one that is never closed for a text that goes on, and
the rows below it for a part of that text.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from epochlake.placement.errors import InvalidRequest

_WELL_QUOTED = re.compile(
    rb'(?:[^"]++'
    # A text in quotes begins where a cell does, and a cell ends where it ends.
    rb'|(?:(?<=[,\r\n])|(?<=\A\xef\xbb\xbf)|\A)"(?:[^"]++|"")*+"(?=[,\r\n]|\Z)'
    # Elsewhere in a cell a quote is one of its letters.
    rb'|(?<![,\r\n])(?<!\A\xef\xbb\xbf)(?<!\A)")*+'
)
_IN_QUOTES = re.compile(rb'"(?:[^"]++|"")*+"')


def require_well_quoted(path: Path) -> None:
    """Raises InvalidRequest, with the line, for a text whose quotes end nowhere, or before the cell ends (RFC 4180).

    Raises OSError for a file that cannot be read. What is no file of a disk is not looked at: it can be read once.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        found = _WELL_QUOTED.match(held)
        end = 0 if found is None else found.end()
        if end == len(held):
            return
        what = "goes on behind its closing quote" if _IN_QUOTES.match(held, end) else "is in quotes that never end"
        line = 1 + held[:end].count(b"\n")
    raise InvalidRequest(
        f"the file {path} cannot be read as csv: a text that begins in line {line} {what}",
        hint='Close it; a quote in a text is written twice: "5"" pipe"',
    )
