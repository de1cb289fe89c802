"""What was found out about tables at one epoch, kept until another epoch is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from epochlake.metastore.metadata.model import TableId

T = TypeVar("T")


class KeptByTable(Generic[T]):
    """A value for each table, made when it is first asked for at an epoch. No epoch is given a value of another one,
    whatever several threads ask for at once.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[int, TableId], T] = {}

    def of(self, epoch: int, table_id: TableId, make: Callable[[], T]) -> T:
        """The value of a table at `epoch`, which `make` makes where it is not known."""
        values, key = self._values, (epoch, table_id)
        if key not in values:
            values = {known: value for known, value in values.items() if known[0] == epoch} | {key: make()}
            self._values = values
        return values[key]
