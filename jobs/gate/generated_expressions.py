"""Expressions of generated columns, as text: `date(at)`, `city || '-' || cast(zip as string)`.

They are read by the reader of checks (check_expressions), which knows more here: texts put together by `||` and
concat, substring, year, month, day, hour and date, and cast where it loses nothing. Times are in UTC. Arrow computes
them, whoever writes. What is known here and not in checks means what it means in Spark's SQL with
`spark.sql.ansi.enabled`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_types import arrow_type, type_name
from epochlake.jobs.gate.check_expressions import CheckReader
from epochlake.jobs.gate.fitting import canonical
from epochlake.jobs.replicas.generated_rows import GeneratedValues, RowGeneration, values_of
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Column, Generated, Table
from epochlake.placement.column_ddl import delta_type
from epochlake.placement.errors import InvalidRequest, words_of
from epochlake.placement.rejections import Code
from epochlake.placement.widening import is_wider

_WORD = re.compile(
    r"\s*(?:(?P<number>\d+\.\d+|\d+)|(?P<text>'(?:[^']|'')*')|(?P<quoted>`[^`]+`)"
    r"|(?P<sign>\|\||<=|>=|<>|!=|==|[-+*<>=(),.])|(?P<word>\w+)|(?P<other>\S))",
    re.IGNORECASE,
)
_SUMS: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "||": lambda one, other: _joined([one, other]),
}
_PARTS = {"year": pc.year, "month": pc.month, "day": pc.day, "hour": pc.hour}
DEEPEST = 32
"""So many brackets within brackets an expression has at most."""

_WHOLE = ("tinyint", "smallint", "int", "bigint")


class _GeneratedReader(CheckReader):
    """Reads the expression of a generated column."""

    what = "expression of a generated column"
    words = _WORD
    known = (
        f"{CheckReader.known}, || and concat, substring(TEXT, FROM[, LENGTH]), year, month, day, hour, date, and "
        "cast(VALUE as TYPE)"
    )

    def __init__(self, text: str, table: Table) -> None:
        super().__init__(text, table)
        self._require_shallow()
        self._rows = pa.schema([(one.name, arrow_type(one.type)) for one in table.columns]).empty_table()

    def _require_shallow(self) -> None:
        """What is read when a column is added is read by every writer, wherever it is called from."""
        depth = signs = 0
        for _, word in self._words:
            depth += (word == "(") - (word == ")")
            signs = signs + 1 if word.lower() in ("-", "not") else 0
            if depth + signs > DEEPEST:
                raise InvalidRequest(
                    f"{self._named[:120]}… has more than {DEEPEST} brackets within brackets, or signs before one value",
                    hint="Write it with fewer",
                )

    def _sum(self) -> pc.Expression:
        return self._combined(self._product, _SUMS)

    def _product(self) -> pc.Expression:
        return self._combined(self._value, {"*": pc.multiply_checked})

    def _combined(
        self,
        part: Callable[[], pc.Expression],
        operators: Mapping[str, Callable[[pc.Expression, pc.Expression], pc.Expression]],
    ) -> pc.Expression:
        found, number = self._with_number(part)
        while self._next in operators:
            combine = operators[self._taken()]
            other, other_number = self._with_number(part)
            found = combine(self._beside(found, number, other), self._beside(other, other_number, found))
            number = None
        return found

    def _with_number(self, part: Callable[[], pc.Expression]) -> tuple[pc.Expression, str | None]:
        """A part, and the whole number that it is, if it is nothing else."""
        before = list(self._words)
        found = part()
        taken = before[: len(before) - len(self._words)]
        is_number = len(taken) == 1 and taken[0][0] == "number" and "." not in taken[0][1]
        return found, taken[0][1] if is_number else None

    def _beside(self, expression: pc.Expression, number: str | None, other: pc.Expression) -> pc.Expression:
        """A whole number beside a decimal is a decimal of so many digits; beside others it is what it is."""
        if number is None or not pa.types.is_decimal(self._type(other)):
            return expression
        return pc.scalar(Decimal(number))

    def _value(self) -> pc.Expression:
        name = self._next
        if self._words[1:2] != [("sign", "(")] or self._words[0][0] != "word":
            return super()._value()
        if name in _PARTS:
            return _PARTS[name](self._moment()).cast(pa.int32())
        if name == "date":
            return self._moment().cast(pa.date32())
        if name == "concat":
            return _joined(self._arguments())
        if name == "substring":
            return self._substring()
        return self._cast() if name == "cast" else super()._value()

    def _arguments(self) -> list[pc.Expression]:
        del self._words[:2]
        values = [self._either()]
        while self._takes(","):
            values.append(self._either())
        self._closed(None)
        return values

    def _moment(self) -> pc.Expression:
        """The one argument of a function of days and moments."""
        found = self._arguments()
        if len(found) != 1:
            raise self._unreadable()
        type_ = self._type(found[0])
        if not (pa.types.is_date(type_) or pa.types.is_timestamp(type_)):
            raise InvalidRequest(
                f"{self._named} asks for a part of a {type_}, which is no day and no moment",
                hint="Give year, month, day, hour and date a column of type date, timestamp or timestamp_ntz",
            )
        return found[0]

    def _substring(self) -> pc.Expression:
        del self._words[:2]
        text, bounds = self._either(), []
        while self._takes(","):
            bounds.append(self._number())
        self._closed(None)
        if len(bounds) not in (1, 2) or bounds[0] < 1:
            raise InvalidRequest(
                f"{self._named} has a substring that is not read",
                hint="Write substring(TEXT, FROM, LENGTH), in numbers; the first character is 1",
            )
        begin = bounds[0] - 1
        return pc.utf8_slice_codeunits(text, begin, begin + bounds[1] if len(bounds) == 2 else None)

    def _number(self) -> int:
        if not self._words or self._words[0][0] != "number" or "." in self._words[0][1]:
            raise self._unreadable()
        return int(self._words.pop(0)[1])

    def _cast(self) -> pc.Expression:
        del self._words[:2]
        value = self._either()
        if not self._takes("as"):
            raise self._unreadable()
        words: list[str] = []
        while self._words and (self._words[0][1] != ")" or ("(" in words and ")" not in words)):
            words.append(self._words.pop(0)[1])
        self._closed(None)
        wanted, type_ = canonical("".join(words)), self._type(value)
        delta_type(wanted)
        if not _is_cast(canonical(type_name(type_)), wanted):
            raise InvalidRequest(
                f"{self._named} casts a {canonical(type_name(type_))} to {wanted}",
                hint="Whole numbers are cast to numbers, decimals to decimals, float to double, moments to date; whole "
                "numbers, days and booleans to string",
            )
        return _as_type(value, type_, arrow_type(wanted))

    def _type(self, expression: pc.Expression) -> pa.DataType:
        return values_of(expression, self._rows).type

    @property
    def _named(self) -> str:
        return f"the {self.what} {self._text!r}"


def _joined(texts: Sequence[pc.Expression]) -> pc.Expression:
    """Texts put together; null where one of them is."""
    return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")


def _as_type(expression: pc.Expression, have: pa.DataType, wanted: pa.DataType) -> pc.Expression:
    """Values of another type; what does not fit is refused when it is computed."""
    if pa.types.is_integer(have) and pa.types.is_decimal(wanted):
        # Arrow asks for as many digits as the type of the number could have, also where the number has few.
        expression = expression.cast(pa.decimal256(19 + wanted.scale, wanted.scale))
    return expression.cast(wanted)


def _is_cast(have: str, wanted: str) -> bool:
    """Whether values are cast from a type to another one: where Arrow and Spark say the same, or Arrow refuses."""
    if have == wanted:
        return True
    if have in _WHOLE:
        return wanted in (*_WHOLE, "double", "string") or wanted.startswith("decimal(")
    if have.startswith("decimal("):
        return wanted.startswith("decimal(")
    return (have, wanted) in (
        ("float", "double"),
        ("boolean", "string"),
        ("date", "string"),
        ("timestamp", "date"),
        ("timestamp_ntz", "date"),
    )


def _is_held(have: str, wanted: str) -> bool:
    """Whether a column holds what an expression gives; whole numbers and decimals only as far as each value fits."""
    whole = have in _WHOLE and (wanted in _WHOLE or wanted.startswith("decimal("))
    return have == wanted or is_wider(have, wanted) or whole or (have[:8], wanted[:8]) == ("decimal(", "decimal(")


def _read(column: Column, table: Table) -> GeneratedValues:
    """What a generated column is computed by. Raises InvalidRequest for what is no expression of its type."""
    assert column.generated is not msgspec.UNSET
    text, wanted = column.generated.expression, arrow_type(column.type)
    try:
        reader = _GeneratedReader(text, table)
        expression = reader.read()
        type_ = values_of(expression, reader._rows).type
        found = canonical(type_name(type_))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the expression {text!r} of column {column.name!r} cannot be computed of rows of {table.full_name}: "
            f"{words_of(error)}",
            hint="Give each function and operator values of its type",
        ) from error
    if not reader.columns:
        raise InvalidRequest(
            f"the expression {text!r} of column {column.name!r} reads no column of {table.full_name}",
            hint=f"Give the column a default: {column.name} {column.type} default …",
        )
    if pa.types.is_nested(wanted) or not _is_held(found, canonical(column.type)):
        raise InvalidRequest(
            f"column {column.name!r} of {table.full_name} is {column.type}, and {text!r} gives {found}",
            hint=f"Cast it: cast(… as {column.type})"
            if _is_cast(found, canonical(column.type))
            else f"Declare it as {found}",
        )
    return GeneratedValues(column, _as_type(expression, type_, wanted), tuple(reader.columns))


def with_generated(table: Table) -> Table:
    """A table that is to be, whose generated columns say which columns they read. Raises Rejected
    (invalid-generated-column) for an expression that cannot be one.
    """
    if not table.generated:
        return table
    numbers = {one.name: one.column_id for one in table.numbered}
    columns = []
    for column in table.columns:
        if column.generated is not msgspec.UNSET:
            text = column.generated.expression
            text = " ".join(text.split()) if "'" not in text else text.strip()
            column = msgspec.structs.replace(column, generated=Generated(text))
            try:
                read = _read(column, table)
            except InvalidRequest as error:
                raise Rejected(Code.INVALID_GENERATED_COLUMN, error.reason, hint=error.hint) from error
            reads = tuple(sorted(number for name in read.reads if isinstance(number := numbers[name], int)))
            column = msgspec.structs.replace(column, generated=Generated(text, reads))
        columns.append(column)
    return msgspec.structs.replace(table, columns=tuple(columns))


def row_generation(table: Table) -> RowGeneration | None:
    """How the generated columns of a table, as it is now, are computed; None where it has none."""
    columns = table.generated
    return RowGeneration(table, tuple(_read(column, table) for column in columns)) if columns else None
