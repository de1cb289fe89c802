"""Random Arrow rows of every type that a table's columns may have."""

from __future__ import annotations

import datetime
import random
import string
from collections.abc import Callable
from decimal import Context, Decimal

import pyarrow as pa
from epochlake.jobs.gate.arrow_types import arrow_type

TYPES = {
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "whole": "int",
    "big": "bigint",
    "short": "float",
    "long": "double",
    "day": "date",
    "moment": "timestamp",
    "wall": "timestamp_ntz",
    "price": "decimal(9,2)",
    "sum": "decimal(18,0)",
    "huge": "decimal(38,3)",
    "text": "string",
    "data": "binary",
    "list": "array<int>",
    "texts": "array<string>",
    "pair": "struct<a:bigint,b:string>",
    "deep": "array<struct<x:double,y:array<decimal(20,1)>>>",
}
EDGES: dict[str, list[object]] = {
    "float": [0.0, -0.0, float("nan"), float("inf"), float("-inf")],
    "double": [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324],
    "decimal(38,3)": [Decimal(number).scaleb(-3) for number in (0, 127, 128, -128, -129, 255, 256, -32768, -32769)],
    "string": ["", "é", "x" * 31, "x" * 32, "x" * 33, "\N{GRINNING FACE}" * 20],
    "binary": [b"", b"\x00", b"\xff" * 64],
}
_DIGITS = Context(prec=60)


def random_rows(seed: int, count: int) -> pa.Table:
    """`count` rows with a column for each of TYPES, and nulls among them."""
    dice = random.Random(seed)
    return pa.table(
        {
            name: pa.array([_value(ddl, dice) for _ in range(count)], arrow_type(ddl), from_pandas=False)
            for name, ddl in TYPES.items()
        }
    )


def _value(ddl: str, dice: random.Random) -> object:
    if dice.random() < 0.1:
        return None
    if ddl in EDGES and dice.random() < 0.2:
        return dice.choice(EDGES[ddl])
    return _DRAWN[ddl](dice)


def _whole(bits: int) -> Callable[[random.Random], object]:
    return lambda dice: dice.randrange(-(1 << bits - 1), 1 << bits - 1)


def _decimal(digits: int, scale: int) -> Callable[[random.Random], object]:
    def draw(dice: random.Random) -> object:
        most = 10 ** dice.randint(1, digits)
        return Decimal(dice.randrange(1 - most, most)).scaleb(-scale, _DIGITS)

    return draw


def _many(ddl: str) -> Callable[[random.Random], object]:
    return lambda dice: [_value(ddl, dice) for _ in range(dice.randrange(5))]


def _moment(dice: random.Random) -> datetime.datetime:
    return datetime.datetime(1900, 1, 1) + datetime.timedelta(microseconds=dice.randrange(10**16))


_DRAWN: dict[str, Callable[[random.Random], object]] = {
    "boolean": lambda dice: dice.random() < 0.5,
    "tinyint": _whole(8),
    "smallint": _whole(16),
    "int": _whole(32),
    "bigint": _whole(64),
    "float": lambda dice: dice.gauss(0, 1e6),
    "double": lambda dice: dice.gauss(0, 1e100),
    "date": lambda dice: _moment(dice).date(),
    "timestamp": lambda dice: _moment(dice).replace(tzinfo=datetime.UTC),
    "timestamp_ntz": _moment,
    "decimal(9,2)": _decimal(9, 2),
    "decimal(18,0)": _decimal(18, 0),
    "decimal(20,1)": _decimal(20, 1),
    "decimal(38,3)": _decimal(38, 3),
    "string": lambda dice: "".join(dice.choices(string.ascii_letters + "é€", k=dice.randrange(80))),
    "binary": lambda dice: dice.randbytes(dice.randrange(100)),
    "array<int>": _many("int"),
    "array<string>": _many("string"),
    "struct<a:bigint,b:string>": lambda dice: {"a": _value("bigint", dice), "b": _value("string", dice)},
    "array<decimal(20,1)>": _many("decimal(20,1)"),
    "struct<x:double,y:array<decimal(20,1)>>": lambda dice: {
        "x": _value("double", dice),
        "y": _value("array<decimal(20,1)>", dice),
    },
    "array<struct<x:double,y:array<decimal(20,1)>>>": _many("struct<x:double,y:array<decimal(20,1)>>"),
}
