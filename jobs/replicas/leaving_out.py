"""Conditions by which Spark leaves rows that do not count out of its own scan, whatever a query asks for.

Few rows are named. Of others a condition finds the words of the file that a row is in, and in them the row's bit. It
costs something for each row that is scanned, so it compares no names: a file is found by its size, where few files have
few sizes, or else by a hash of its name and size. How long that takes does not depend on how many files there are.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from epochlake.jobs.jvm_calls import is_unset
from epochlake.jobs.replicas.superseding import WORD_BITS, WORDS
from epochlake.placement.column_hashing import hashes_of
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

NAMED_POSITIONS = 256
"""So few rows that do not count are named in a filter of Spark's scan."""

LOOKED_UP = 512
"""Of so few files a filter of Spark's scan looks bits up. More are joined with, which costs a stage."""

LOOKED_UP_ROWS = 1 << 24
"""So many rows these files have at most. There is a bit (2 MiB) for each of them, so that none is beyond the words."""

SEARCHED = 16
"""Among so few sizes of files one is searched for, which takes as long as hashing a name where there are more."""

MOST_CONDITIONS = 8
"""So many conditions a session keeps, each with a bit for every row of its files: at most 2 MiB."""

OTHER_FILE = "A data file is none of those that were planned, or has another size now"
"""What the error of a scan begins with that meets such a file. A new read names it, as it looks at all of them."""

_NOWHERE = -(1 << 30)
"""Where the words of a file without any begin: no row of a file leads from there to a word."""

PLACES_FOR_EACH = 64
"""So many places a table of hashes has for each file at least: of the files that nobody planned to read, or that have
another size by now, one in so many is taken for one of them.
"""

_TRIED = 2_000
"""So many sizes of such a table are tried; for 512 files one in fifty has a place for each of them."""


def named(positions: Mapping[str, Sequence[int]]) -> Column:
    """Whether a row is at none of these positions, by the file's name.

    Numbers are compared first: few rows are at a position that is named for any file, and comparing names takes longer.
    """
    from pyspark.sql import functions as F

    told = " OR ".join(
        f"_metadata.row_index IN ({', '.join(map(str, at))}) AND _metadata.file_name = '{name}'"
        for name, at in positions.items()
    )
    return F.expr(f"NOT ({told or 'false'})")


def have_hashes_of_their_own(names: Collection[str]) -> bool:
    """Whether no two of these names have the same hash."""
    return len(np.unique(_hashes(names))) == len(names)


class Conditions:
    """What `looked_up` has made last, for each session; kept by a storage. Safe from several threads.

    Making one takes some 30 calls to the JVM. Who reads a table again, with nothing written meanwhile, needs the same.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[SparkSession, OrderedDict[object, Column]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def looked_up(
        self, spark: SparkSession, words: Mapping[str, NDArray[np.int64]], sizes: Mapping[str, int]
    ) -> Column | None:
        """Whether a row counts, by its bit among the `words` of its file, of which each row has one.

        `sizes` in bytes, of all files that are scanned. None for too many files or rows, or where a table has no place
        for each of the hashes.
        """
        if len(sizes) > LOOKED_UP or sum(map(len, words.values())) * WORD_BITS > LOOKED_UP_ROWS:
            return None
        digest = hashlib.sha256()
        for one in words.values():
            digest.update(one.tobytes())
        files = tuple((name, len(one)) for name, one in words.items())
        key = (digest.digest(), files, tuple(sorted(sizes.items())))
        with self._lock:
            kept = self._kept.setdefault(spark, OrderedDict())
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        made = looked_up(spark, words, sizes)
        if made is None:
            return None
        with self._lock:
            kept[key] = made
            while len(kept) > MOST_CONDITIONS:
                kept.popitem(last=False)
        return made


def looked_up(spark: SparkSession, words: Mapping[str, NDArray[np.int64]], sizes: Mapping[str, int]) -> Column | None:
    """`Conditions.looked_up`, made anew.

    However many files there are, the expression is small: every rule of the optimiser pays for each node of it. Plans
    stay short to read, as the words are a constant that is not shown, or else a scalar subquery of rows that Spark has
    at once, which costs no stage.
    """
    from pyspark.sql import functions as F

    every = np.concatenate(list(words.values()))
    begins = np.cumsum([0, *(len(one) for one in words.values())]).tolist()[:-1]
    # Those with the most rows come first: they are found soon.
    known = dict(zip(words, begins, strict=True)) | {name: _NOWHERE for name in sizes if name not in words}
    is_searched = len(sizes) <= SEARCHED and len(set(sizes.values())) == len(sizes)
    begin = _by_size(known, sizes) if is_searched else _by_hash(known, sizes)
    if begin is None:
        return None
    # Spark makes a struct of what is asked of a file for each row: a text in it is made for an error that never comes.
    said = f"'{OTHER_FILE}'" if is_searched else f"concat('{OTHER_FILE}: ', _metadata.file_name)"
    begin = f"coalesce({begin}, cast(raise_error({said}) as int))"
    place, bit = f"cast(shiftright(_metadata.row_index, 6) as int) + {begin}", "cast(_metadata.row_index & 63 as int)"
    # Null, and not 1, where no word is told of a file.
    by_constant = is_unset(spark, every, place, bit)
    if by_constant is not None:
        return by_constant
    one_row = pa.table({WORDS: pa.ListArray.from_arrays([0, len(every)], pa.array(every))})
    return ~F.getbit(F.get(spark.createDataFrame(one_row).scalar(), F.expr(place)), F.expr(bit)).eqNullSafe(1)


def _written(numbers: Sequence[int | None]) -> str:
    """Numbers as a subquery of SQL. Spark computes them while it analyses that: no plan shows them."""
    text = ",".join("null" if number is None else str(number) for number in numbers)
    return f"(SELECT w FROM VALUES (from_json('[{text}]', 'array<int>', map('mode', 'FAILFAST'))) AS t(w))"


def _by_size(begins: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """Where the words of the file begin that a row is in, as an expression of SQL; null for a file of another size than
    all that are scanned, of which no two have one size.
    """
    at = ", ".join(f"{sizes[name]}L" for name in begins)
    return (
        f"get(array({', '.join(map(str, begins.values()))}), "
        f"cast(array_position(array({at}), _metadata.file_size) as int) - 1)"
    )


def _by_hash(begins: Mapping[str, int], sizes: Mapping[str, int]) -> str | None:
    """As `_by_size`, by the remainder of the hash of a file's name and size; null for nearly all other files, which
    have a place that nobody has.

    The divisor is the size of the table, and no number in the text: Spark would compile the condition anew for each.
    """
    hashes = _hashes(begins, [sizes[name] for name in begins])
    least = max(PLACES_FOR_EACH * len(begins), len(begins) ** 2 // 8)
    for size in range(least, least + _TRIED):
        places = hashes % size
        if len(np.unique(places)) == len(begins):
            break
    else:
        return None
    table: list[int | None] = [None] * size
    for place, begin in zip(places.tolist(), begins.values(), strict=True):
        table[place] = begin
    entries = _written(table)
    return f"get({entries}, cast(pmod(xxhash64(_metadata.file_name, _metadata.file_size), size({entries})) as int))"


def _hashes(names: Collection[str], sizes: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Spark's `xxhash64` of each name, or of each name and size."""
    columns = [pa.array(names, pa.string()), *([] if sizes is None else [pa.array(sizes, pa.int64())])]
    return hashes_of(columns, len(names))
