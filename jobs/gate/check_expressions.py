"""Checks of a table, as text: `amount >= 0 and currency in ('EUR', 'USD')`.

A text becomes an expression of Arrow over the columns of the table, by the reader that merges have (merge_expressions),
so that a row is judged by one engine whoever writes it. Known beside what merges know are columns by their own names
(in backquotes where they are no words, with dots into structs), `[not] in`, `[not] between`, `[not] like`, length,
lower, upper and abs. A text beside a column is read as a value of the column's type: days, moments, numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.jobs.gate.merge_expressions import _COMPARED, _Reader
from epochlake.jobs.replicas.row_checks import RowCheck, RowChecks
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Check, Table
from epochlake.placement.errors import InvalidRequest, words_of
from epochlake.placement.rejections import Code

_WORD = re.compile(
    r"\s*(?:(?P<number>\d+\.\d+|\d+)|(?P<text>'(?:[^']|'')*')|(?P<quoted>`[^`]+`)"
    r"|(?P<sign><=|>=|<>|!=|==|[-+*<>=(),.])|(?P<word>\w+)|(?P<other>\S))",
    re.IGNORECASE,
)
_WORDS = frozenset({"and", "or", "not", "is", "in", "between", "like", "null", "true", "false"})
_FUNCTIONS: dict[str, Callable[[pc.Expression], pc.Expression]] = {
    "length": pc.utf8_length,
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "abs": pc.abs_checked,
}


class _Operand(NamedTuple):
    """What is compared: `type` where it is a column and nothing else, `text` where it is a text and nothing else,
    `number` where it is a whole number.
    """

    expression: pc.Expression
    type: pa.DataType | None = None
    text: str | None = None
    number: str | None = None


class CheckReader(_Reader):
    """Reads a predicate over the columns of a table, from left to right."""

    what = "check"
    words = _WORD
    known = (
        "Known are columns, numbers, texts in single quotes, true, false, null, + - *, comparisons, is [not] "
        "null, [not] in, between and like, and, or, not, coalesce, length, lower, upper and abs"
    )

    def __init__(self, text: str, table: Table) -> None:
        self._text = text
        self._table = table
        self._words = [(match.lastgroup or "", match[match.lastgroup or ""]) for match in self.words.finditer(text)]
        self._column_type: pa.DataType | None = None
        self.columns: dict[str, None] = {}

    def _compared(self) -> pc.Expression:
        left = self._operand()
        if self._takes("is"):
            negated = self._takes("not")
            if not self._takes("null"):
                raise self._unreadable()
            return left.expression.is_valid() if negated else left.expression.is_null()
        negated = self._takes("not")
        found = self._of_words(left)
        if found is not None:
            return ~found if negated else found
        if negated:
            raise self._unreadable()
        if self._next in _COMPARED:
            compared = _COMPARED[self._taken()]
            return self._alike(compared, left, self._operand())
        return left.expression

    def _of_words(self, left: _Operand) -> pc.Expression | None:
        """A comparison that is said in words, None where there is none."""
        if self._takes("in"):
            if not self._takes("("):
                raise self._unreadable()
            among = [self._operand()]
            while self._takes(","):
                among.append(self._operand())
            self._closed(None)
            return reduce(pc.or_kleene, [self._alike(_COMPARED["="], left, one) for one in among])
        if self._takes("between"):
            low = self._operand()
            if not self._takes("and"):
                raise self._unreadable()
            high = self._operand()
            return pc.and_kleene(self._alike(_COMPARED[">="], left, low), self._alike(_COMPARED["<="], left, high))
        if self._takes("like"):
            pattern = self._operand().text
            if pattern is None:
                raise self._unreadable()
            return pc.match_like(left.expression, pattern)
        return None

    def _operand(self) -> _Operand:
        before = list(self._words)
        self._column_type = None
        expression = self._sum()
        taken = before[: len(before) - len(self._words)]
        if len(taken) == 1 and taken[0][0] == "text":
            return _Operand(expression, text=taken[0][1][1:-1].replace("''", "'"))
        if [kind for kind, _ in taken[-1:]] == ["number"] and [word for _, word in taken[:-1]] in ([], ["-"]):
            return _Operand(expression, number="".join(word for _, word in taken))
        path = all(
            kind in ("word", "quoted") if number % 2 == 0 else word == "." for number, (kind, word) in enumerate(taken)
        )
        return _Operand(expression, type=self._column_type if path else None)

    def _alike(
        self, compared: Callable[[pc.Expression, pc.Expression], pc.Expression], left: _Operand, right: _Operand
    ) -> pc.Expression:
        """A comparison of two operands; a text beside a column is a value of its type."""
        sides = [self._as_value(one, beside.type) for one, beside in ((left, right), (right, left))]
        return compared(*sides)

    def _as_value(self, one: _Operand, type_: pa.DataType | None) -> pc.Expression:
        if one.number is not None and type_ is not None and pa.types.is_decimal(type_):
            return pc.scalar(Decimal(one.number))
        if one.text is None or type_ is None or pa.types.is_string(type_):
            return one.expression
        try:
            return pc.scalar(pa.scalar(one.text).cast(type_))
        except pa.ArrowException as error:
            raise InvalidRequest(
                f"{one.text!r} is no {type_} in the {self.what} {self._text!r}: {words_of(error)}",
                hint="Write days as '2020-01-31', and moments with their zone: '2020-01-31T10:00:00Z'",
            ) from None

    def _value(self) -> pc.Expression:
        if not self._words:
            raise self._unreadable()
        kind, word = self._words[0]
        if kind == "word" and word.lower() in _FUNCTIONS and self._words[1:2] == [("sign", "(")]:
            del self._words[:2]
            return _FUNCTIONS[word.lower()](self._closed(self._either()))
        is_coalesce = word.lower() == "coalesce" and self._words[1:2] == [("sign", "(")]
        if kind == "quoted" or (kind == "word" and word.lower() not in _WORDS and not is_coalesce):
            return self._column()
        return super()._value()

    def _column(self) -> pc.Expression:
        name = self._words.pop(0)[1].strip("`")
        known = {column.name: column for column in self._table.columns}
        if name not in known:
            raise InvalidRequest(
                f"the {self.what} {self._text!r} cannot be read: table {self._table.full_name} has no column {name}",
                hint=f"It has {', '.join(known)}. Texts are in single quotes",
            )
        self.columns[name] = None
        path, type_ = [name], arrow_type(known[name].type)
        while self._takes("."):
            if not self._words or not pa.types.is_struct(type_):
                raise self._unreadable()
            field = self._words.pop(0)[1].strip("`")
            if type_.get_field_index(field) < 0:
                raise InvalidRequest(
                    f"the {self.what} {self._text!r} cannot be read: {'.'.join(path)} has no field {field}"
                )
            path.append(field)
            type_ = type_.field(field).type
        self._column_type = type_
        return pc.field(*path)

    @property
    def _next(self) -> str:
        kind, word = self._words[0] if self._words else ("", "")
        return "" if kind in ("text", "quoted") else word.lower()

    def _unreadable(self) -> InvalidRequest:
        at = f"at {self._words[0][1]!r}" if self._words else "at its end"
        return InvalidRequest(f"the {self.what} {self._text!r} cannot be read {at}", hint=self.known)


def read_check(name: str, predicate: str, table: Table) -> RowCheck:
    """A check of the columns that a table has now. Raises InvalidRequest for what is no predicate over them."""
    reader = CheckReader(predicate, table)
    try:
        expression = reader.read()
    except RecursionError:
        raise InvalidRequest(f"the check {predicate[:80]!r}… has too many brackets within brackets") from None
    if not reader.columns:
        raise InvalidRequest(f"the check {predicate!r} reads no column of {table.full_name}")
    fields = [pa.field(one.name, arrow_type(one.type)) for one in table.columns if one.name in reader.columns]
    try:
        pa.schema(fields).empty_table().filter(expression)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidRequest(
            f"the check {predicate!r} is no predicate over {table.full_name}: {words_of(error)}",
            hint="Compare columns with values of their types",
        ) from error
    return RowCheck(name, predicate, expression, tuple(reader.columns))


def new_check(name: str, predicate: str, table: Table) -> Check:
    """A check to be added to a table. Raises Rejected (invalid-check) for what is no predicate over its columns."""
    predicate = " ".join(predicate.split()) if "'" not in predicate else predicate.strip()
    try:
        read = read_check(name, predicate, table)
    except InvalidRequest as error:
        raise Rejected(Code.INVALID_CHECK, error.reason, hint=error.hint) from error
    numbers = {column.name: column.column_id for column in table.numbered}
    return Check(name, predicate, tuple(sorted(_known(numbers[column]) for column in read.columns)))


def row_checks(table: Table, checks: Sequence[Check] | None = None) -> RowChecks | None:
    """The checks of a table as it is now, or some of them, as rows are judged by them; None for none."""
    asked = table.checked if checks is None else checks
    return RowChecks(table, tuple(read_check(one.name, one.predicate, table) for one in asked)) if asked else None


def _known(number: int | msgspec.UnsetType) -> int:
    assert number is not msgspec.UNSET
    return number
