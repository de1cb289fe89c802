"""The one root of every error, kept in the lowest package so that all three can raise below it.

An error has a reason (what was asked, and what stands in the way) and, where something can be done, a hint. They are
apart, so that each surface can say them in its own way; as text they are one sentence after the other. `exit_code` is
what the command line ends with (design, section 13): 1 failed, 2 usage, 3 rejected by the metadata, 4 an invariant does
not hold, 75 worth retrying.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any, Self


def words_of(error: BaseException) -> str:
    """What an error says, to be a part of a sentence: one line without a full stop of its own."""
    # Some libraries colour what they say.
    return " ".join(_COLOURS.sub("", str(error)).split()).rstrip(" .") or type(error).__name__


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def sentences(reason: str, hint: str) -> str:
    """A reason and a hint as one text; an empty hint adds nothing."""
    if not hint:
        return reason
    return f"{reason}{' ' if reason.endswith(('.', '?', '!')) else '. '}{hint}"


class EpochlakeError(Exception):
    """Root of all errors of Epochlake.

    reason:  what was asked, and what stands in the way
    hint:    what to do about it, as a sentence of its own without a full stop; empty when nothing general can be said

    Executors send errors to the driver, so every error can be pickled, whatever its class is made with.
    """

    exit_code = 1

    def __init__(self, reason: str = "", *, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint

    @classmethod
    def of(cls, error: EpochlakeError) -> Self:
        """An error of this class with the reason and the hint of another one."""
        return cls(error.reason, hint=error.hint)

    @property
    def statement(self) -> str:
        """What `str` says, without the hint."""
        return self.reason

    @property
    def text(self) -> str:
        """Reason and hint, for documents that name the code apart."""
        return sentences(self.reason, self.hint)

    def __str__(self) -> str:
        return sentences(self.statement, self.hint)

    def _repr_html_(self) -> str:
        hint = f"<br><em>{escape(self.hint)}</em>" if self.hint else ""
        return f"<b>{escape(type(self).__name__)}</b>: {escape(self.statement)}{hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[EpochlakeError], args: tuple[Any, ...], state: dict[str, Any]) -> EpochlakeError:
    """An error as it was pickled: its class may be made with other arguments than an exception keeps."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidRequest(EpochlakeError):
    """What was asked cannot be meant: a wrong type, an unknown name, a value out of range."""

    exit_code = 2


class InvariantViolated(EpochlakeError):
    """Something that must always hold does not."""

    exit_code = 4


class PlacementImpossible(EpochlakeError):
    """No placement satisfies the replication that was asked for."""

    exit_code = 3
