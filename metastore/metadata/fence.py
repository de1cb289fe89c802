"""What replicas compare epochs by: incarnation and epoch, in that order, as one number.

Epochs whose loss an operator has accepted come before every epoch of the incarnation that goes on,
however high they were. In the first incarnation a fence is the epoch itself, so that it reads and compares like one.
"""

from __future__ import annotations

from typing import Self

_EPOCHS = 1 << 44
"""More than any incarnation has."""


class Fence(int):
    """A point in the history of all incarnations. Text: `22`, or `2:22` for epoch 22 of incarnation 2."""

    def __new__(cls, epoch: int, incarnation: int = 1) -> Self:
        return super().__new__(cls, (incarnation - 1) * _EPOCHS + epoch)

    @classmethod
    def of(cls, number: int) -> Self:
        """The fence that a plain number stands for."""
        return cls(number % _EPOCHS, number // _EPOCHS + 1)

    @classmethod
    def decode(cls, text: str) -> Self:
        """What `str` has written. Raises ValueError."""
        incarnation, colon, epoch = text.rpartition(":")
        return cls(int(epoch), int(incarnation) if colon else 1)

    @property
    def epoch(self) -> int:
        return int(self) % _EPOCHS

    @property
    def incarnation(self) -> int:
        return int(self) // _EPOCHS + 1

    def __str__(self) -> str:
        return f"{self.epoch}" if self.incarnation == 1 else f"{self.incarnation}:{self.epoch}"

    __repr__ = __str__
