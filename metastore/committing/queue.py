"""The line in front of the log, as committing needs it: a fair lock, offers to its holder, and news of the head.

Nothing in it decides whether an epoch is committed: the append does. It keeps committers from working in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from epochlake.metastore.log.entry import Position


class Meanwhile(NamedTuple):
    """What is done once, by the thread that waits, when others have been waited for for `after` seconds."""

    after: float
    do: Callable[[], None]


class CommitQueue(Protocol):
    """The line in front of the log: a fair lock, proposals that wait in it, and news of the head.

    A ticket, whatever its type, stands for proposals that were offered to whoever holds the lock.
    """

    def acquire(self, timeout: float, meanwhile: Meanwhile | None = None) -> bool:
        """Wait for the lock. False after `timeout`, and as soon as there are `answers` of others.

        Raises CoordinationUnavailable when there is nobody to ask.
        """
        ...

    def seconds_in_line(self) -> float:
        """How long the last `acquire` has waited for others that had the lock or were before us."""
        ...

    def release(self) -> None:
        """Never raises."""
        ...

    def offer(self, proposals: bytes) -> Any | None:
        """Show proposals to whoever holds the lock; None when that is not possible, and they are not shown."""
        ...

    def withdraw(self, ticket: Any) -> bool:
        """Take an offer back. True: nobody has taken it nor will. False: nobody will, but somebody may have.

        Raises CoordinationUnavailable when neither is sure: somebody may still take it.
        """
        ...

    def claim(self) -> list[bytes]:
        """Take the offers of others; each offer is claimed once, or withdrawn, never both. Never raises."""
        ...

    def drop(self, holds: Callable[[bytes], bool]) -> bool:
        """Take those offers of others away for which `holds`, for nobody to append: their owners look for them in the
        log. Never raises: False where the line does not answer, so that some may be in it still.
        """
        ...

    def answer(self, epochs: Sequence[dict[str, int]]) -> None:
        """Tell the owners of what `claim` has returned last, in that order, which of their requests are in the log, and
        at which epochs. Never raises and does not wait: who gets no answer asks the log.
        """
        ...

    def answers(self) -> dict[Any, dict[str, int]]:
        """What others have told of our offers since the last call: by ticket, request ids and the epochs they are at.

        It is told of the offer and not of the request: the same request id may be on its way with another change.
        """
        ...

    def announced(self) -> Position | None:
        """The newest epoch that was announced when the lock was asked for, or had if others were before us; None when
        nobody tells. The log has to hold it. Raises WrongCluster when the line is that of another root.
        """
        ...

    def publish(self, position: Position) -> None:
        """Announce the newest epoch. Never raises: the log is the truth, and the next one to commit repairs this."""
        ...
