"""What workers promise: a task is done for many items side by side, wherever the workers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
    """Does tasks that only use storage and their item, so that they can be done in any process.

    Task and items may be pickled for that, and results may come as JSON: `returns` is the type that they are decoded
    to. A task that must not stop the others gives its failure as a value. A task that moves bytes is `Paced`.
    """

    def run(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R]) -> list[R]:
        """`task` of each item, in the order of the items. Raises the first error in that order, when all have ended."""

    def each(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R]) -> Iterator[tuple[T, R]]:
        """Items with their results as they end, in any order. Raises an error where it comes."""
