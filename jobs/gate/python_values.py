"""Values of Python as an Arrow column of a declared type, none of them changed on the way.

Arrow by itself takes a moment for a date and bytes for text, and leaves out what a struct does not declare. So each
value is looked at first. Only a number for a column of the type float is rounded, as Python has none that is so short.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
from epochlake.metastore.texts import is_unicode
from epochlake.placement.errors import words_of

_EXACT = Context(prec=100)
_LARGEST_FLOAT = float(np.finfo(np.float32).max)

REFUSED_BY_ARROW = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""What Arrow raises for values of Python, and of pandas, that it cannot have."""

_EXACT_UP_TO = {pa.float32(): 2**24, pa.float64(): 2**53}
"""Up to there each whole number is one of a type with a point."""

_Fit = Callable[[object], object]
"""A value that is not null as Arrow shall have it. Raises UnfitValue."""


class UnfitValue(Exception):
    """A value is not one of the declared type; the text says which, and what it should be."""


def array_of(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    """The values as an array of one of the types that arrow_types.py gives; None is null. Raises UnfitValue."""
    fit = _fit_for(type_)
    fitting = [None if value is None else fit(value) for value in values]
    try:
        return pa.array(fitting, type_, from_pandas=False)
    except REFUSED_BY_ARROW:
        # Arrow does not say which one it means, and has words of its own for the rest.
        for value, one in zip(values, fitting, strict=True):
            try:
                pa.array([one], type_, from_pandas=False)
            except REFUSED_BY_ARROW as error:
                raise _unfit(value, f"none that can be stored: {words_of(error)}") from error
        raise


def _fit_for(type_: pa.DataType) -> _Fit:
    if pa.types.is_list(type_):
        return _list_of(_fit_for(type_.value_type))
    if pa.types.is_map(type_):
        return _map_of(_fit_for(type_.key_type), _fit_for(type_.item_type))
    if pa.types.is_struct(type_):
        return _struct_of({field.name: _fit_for(field.type) for field in type_})
    if pa.types.is_decimal(type_):
        return _decimal_of(type_.precision, type_.scale)
    if pa.types.is_integer(type_):
        return _whole_of(type_.bit_width)
    if pa.types.is_timestamp(type_):
        return _moment_in_a_zone if type_.tz else _moment_without_zone
    return _FITS[type_]


def _boolean(value: object) -> object:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise _unfit(value, "neither true nor false")


def _whole_of(bits: int) -> _Fit:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def fit(value: object) -> object:
        if not isinstance(value, int | np.integer) or isinstance(value, bool | np.timedelta64):
            raise _unfit(value, "no whole number")
        if not least <= value <= most:
            raise _unfit(value, f"out of its range: whole numbers from {least} to {most}")
        return int(value)

    return fit


def _with_a_point(type_: pa.DataType) -> _Fit:
    most = _EXACT_UP_TO[type_]

    def fit(value: object) -> object:
        if isinstance(value, float | np.floating):
            return float(value)
        if not isinstance(value, int | np.integer) or isinstance(value, bool | np.timedelta64):
            raise _unfit(value, "no number")
        if not -most <= value <= most:
            raise _unfit(value, f"a whole number beyond {most}, up to which each one can be held: give a float")
        return int(value)

    return fit


_double = _with_a_point(pa.float64())
_short = _with_a_point(pa.float32())


def _float(value: object) -> object:
    number = _short(value)
    if isinstance(number, float) and math.isfinite(number) and abs(number) > _LARGEST_FLOAT:
        raise _unfit(value, "too large for a float")
    return number


def _text(value: object) -> object:
    if not isinstance(value, str):
        raise _unfit(value, "no text")
    if not value.isascii() and not is_unicode(value):
        raise _unfit(value, "no text that UTF-8 has: it has half of a pair of surrogates")
    return str(value)


def _bytes(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _unfit(value, "no bytes")


def _date(value: object) -> object:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise _unfit(value, "no date")


def _moment_in_a_zone(value: object) -> object:
    if _moment(value).tzinfo is None:
        raise _unfit(value, "without a time zone: give it one, as datetime.UTC")
    return value


def _moment_without_zone(value: object) -> object:
    if _moment(value).tzinfo is not None:
        raise _unfit(value, "in a time zone, and the column has none")
    return value


def _moment(value: object) -> datetime.datetime:
    if not isinstance(value, datetime.datetime) or value != value:  # what pandas has for none is a datetime
        raise _unfit(value, "no point in time")
    if getattr(value, "nanosecond", 0):
        raise _unfit(value, "finer than a microsecond")
    return value


def _decimal_of(precision: int, scale: int) -> _Fit:
    unit, limit = Decimal(1).scaleb(-scale), Decimal(1).scaleb(precision - scale)

    def fit(value: object) -> object:
        number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(number, Decimal) or not number.is_finite():
            raise _unfit(value, "no decimal number")
        if not -limit < number < limit:
            raise _unfit(value, f"too large: it has more than {precision - scale} digits before the point")
        exact = number.quantize(unit, context=_EXACT)
        if exact != number:
            raise _unfit(value, f"one with more than {scale} digits after the point")
        return exact

    return fit


def _list_of(element: _Fit) -> _Fit:
    def fit(value: object) -> object:
        if not isinstance(value, list | tuple | np.ndarray):
            raise _unfit(value, "no list")
        return [None if one is None else element(one) for one in value]

    return fit


def _map_of(key: _Fit, item: _Fit) -> _Fit:
    def fit(value: object) -> object:
        if not isinstance(value, Mapping):
            raise _unfit(value, "no mapping")
        return [(None if k is None else key(k), None if v is None else item(v)) for k, v in value.items()]

    return fit


def _struct_of(fields: Mapping[str, _Fit]) -> _Fit:
    def fit(value: object) -> object:
        if not isinstance(value, Mapping):
            raise _unfit(value, f"no mapping with the fields {', '.join(fields)}")
        # The value itself is not quoted: fields that were left out may have been given null by now.
        lacks = [f"lacks {name}" for name in fields if name not in value]
        has = [f"has {name}, which is no field of it" for name in value if name not in fields]
        if lacks or has:
            raise UnfitValue(
                f"a value of the struct with the fields {', '.join(fields)} {' and '.join([*lacks, *has])}"
            )
        return {name: None if value[name] is None else one(value[name]) for name, one in fields.items()}

    return fit


_FITS: Mapping[pa.DataType, _Fit] = {
    pa.bool_(): _boolean,
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _text,
    pa.binary(): _bytes,
    pa.date32(): _date,
}


def shown(value: object) -> str:
    """A value in a message: in so many characters at most."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _unfit(value: object, why: str) -> UnfitValue:
    return UnfitValue(f"{shown(value)} is {why}")
