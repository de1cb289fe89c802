"""What the clauses of a merge compute, as text: `target.n + source.n`, `source.at > target.at or target.at is null`.

A text becomes an expression of Arrow over the columns `source.…` and `target.…`, so that a merge is the same with Spark
and without. Known are columns, numbers, texts in quotes, true, false, null, + - *, comparisons, `is [not] null`, and,
or, not, brackets, and coalesce(…). For all else an expression of Arrow can be given.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal

import pyarrow.compute as pc
from epochlake.jobs.gate.python_values import REFUSED_BY_ARROW, shown
from epochlake.placement.errors import InvalidRequest, words_of

SOURCE, TARGET = "source.", "target."

_WORD = re.compile(
    r"\s*(?:(?P<column>(?:source|target)\.(?:`[^`]+`|\w+))|(?P<number>\d+\.\d+|\d+)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<sign><=|>=|<>|!=|==|[-+*<>=(),])|(?P<word>\w+)|(?P<other>\S))",
    re.IGNORECASE,
)
_COMPARED: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPUTED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


def expression_of(what: object, whose: str = "a merge is given ") -> pc.Expression:
    """What a text says, an expression of Arrow as it is, and any other value as itself. Raises InvalidRequest, which
    begins with `whose` where it is about such a value.
    """
    if isinstance(what, pc.Expression):
        return what
    if isinstance(what, str):
        return _Reader(what).read()
    try:
        return pc.scalar(what)
    except REFUSED_BY_ARROW as error:
        raise InvalidRequest(
            f"{whose}{shown(what)}, which is no value of a column ({words_of(error)})",
            hint="Give a value that the column can hold, a text over source.NAME and target.NAME, or an expression of "
            "pyarrow.compute",
        ) from error


def _number(word: str, kind: Callable[[str], Decimal | int]) -> pc.Expression:
    try:
        return pc.scalar(kind(word))
    except REFUSED_BY_ARROW as error:
        raise InvalidRequest(
            f"the number {word if len(word) <= 60 else word[:57] + '…'} of a merge is larger than any column can hold",
            hint="Whole numbers go up to 9223372036854775807, and others have 76 digits",
        ) from error


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = [(match.lastgroup or "", match[match.lastgroup or ""]) for match in _WORD.finditer(text)]

    def read(self) -> pc.Expression:
        found = self._either()
        if self._words:
            raise self._unreadable()
        return found

    def _either(self) -> pc.Expression:
        found = self._both()
        while self._takes("or"):
            found = pc.or_kleene(found, self._both())
        return found

    def _both(self) -> pc.Expression:
        found = self._negated()
        while self._takes("and"):
            found = pc.and_kleene(found, self._negated())
        return found

    def _negated(self) -> pc.Expression:
        return ~self._negated() if self._takes("not") else self._compared()

    def _compared(self) -> pc.Expression:
        is_compared = len(self._words) > 1 and self._words[1][1] in _COMPARED
        found = self._compared_with() if is_compared else self._sum()
        if self._takes("is"):
            negated = self._takes("not")
            if not self._takes("null"):
                raise self._unreadable()
            return found.is_valid() if negated else found.is_null()
        if self._next in _COMPARED:
            return _COMPARED[self._taken()](found, self._compared_with())
        return found

    def _compared_with(self) -> pc.Expression:
        number = self._whole_number()
        return self._sum() if number is None else number

    def _whole_number(self) -> pc.Expression | None:
        """A whole number that a side of a comparison is, as a decimal: Arrow compares any number with it, but a decimal
        with an int only where that has few digits.
        """
        if not self._words or self._words[0][0] != "number" or "." in self._words[0][1]:
            return None
        if len(self._words) > 1 and self._words[1][1] in _COMPUTED:
            return None
        return _number(self._words.pop(0)[1], Decimal)

    def _sum(self) -> pc.Expression:
        found = self._product()
        while self._next in ("+", "-"):
            found = _COMPUTED[self._taken()](found, self._product())
        return found

    def _product(self) -> pc.Expression:
        found = self._value()
        while self._next == "*":
            found = _COMPUTED[self._taken()](found, self._value())
        return found

    def _value(self) -> pc.Expression:
        if not self._words:
            raise self._unreadable()
        kind, word = self._words.pop(0)
        match kind, word.lower():
            case "column", _:
                side, _, name = word.partition(".")
                return pc.field(f"{side.lower()}.{name.strip('`')}")
            case "number", _:
                return _number(word, Decimal if "." in word else int)
            case "text", _:
                return pc.scalar(word[1:-1].replace("''", "'"))
            case "word", ("true" | "false") as truth:
                return pc.scalar(truth == "true")
            case "word", "null":
                return pc.scalar(None)
            case "word", "coalesce" if self._takes("("):
                values = [self._either()]
                while self._takes(","):
                    values.append(self._either())
                return pc.coalesce(*self._closed(values))
            case "sign", "(":
                return self._closed(self._either())
            case "sign", "-":
                return pc.negate_checked(self._value())
        self._words.insert(0, (kind, word))
        raise self._unreadable()

    def _closed(self, found):  # type: ignore[no-untyped-def]
        if not self._takes(")"):
            raise self._unreadable()
        return found

    @property
    def _next(self) -> str:
        kind, word = self._words[0] if self._words else ("", "")
        return "" if kind == "text" else word.lower()

    def _takes(self, word: str) -> bool:
        if self._next != word:
            return False
        self._words.pop(0)
        return True

    def _taken(self) -> str:
        return self._words.pop(0)[1]

    def _unreadable(self) -> InvalidRequest:
        at = f"at {self._words[0][1]!r}" if self._words else "at its end"
        return InvalidRequest(
            f"the expression {self._text!r} of a merge cannot be read {at}",
            hint="Name columns source.NAME and target.NAME; known are + - *, comparisons, is null, and, or, not and "
            "coalesce. For all else give an expression of pyarrow.compute",
        )
