"""A server of the ensemble that lags behind the others: who is connected to it sees the past.

ZooKeeper promises no more: reads are answered by the server that one is connected to, from what it has applied.
It applies all changes in their order, tells of each before it shows anything newer, and has applied what a session has
written, and all before it, when that session is answered; `sync` brings it up to date.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, Self, TypeVar


class Copied(Protocol):
    """What a tree is made of."""

    def copy(self) -> Self: ...


Z = TypeVar("Z", bound=Copied)
L = TypeVar("L")


class Sight(NamedTuple):
    """Something that watches tell of: of the `children` of a znode, or of itself."""

    children: bool
    path: str
    kind: str


class Lagging(Generic[Z, L]):
    """A server that is as far as `tree` says, and applies each change `by` seconds after the others.

    `tell` tells a connection of a watch.
    """

    def __init__(self, tree: Mapping[str, Z], by: float, tell: Callable[[L, str, str], None]) -> None:
        self.tree: dict[str, Z] = {path: znode.copy() for path, znode in tree.items()}
        self.watches: dict[tuple[bool, str], dict[L, None]] = {}
        self._by = by
        self._tell = tell
        self._coming: deque[tuple[float, dict[str, Z | None], list[Sight]]] = deque()

    def hear(self, now: float, changed: Mapping[str, Z | None], seen: list[Sight]) -> None:
        """The others have applied a change: `changed` has each znode that is another one since, None if it is gone."""
        copied = {path: None if znode is None else znode.copy() for path, znode in changed.items()}
        self._coming.append((now + self._by, copied, seen))

    @property
    def next_at(self) -> float | None:
        """When it applies the next change."""
        return self._coming[0][0] if self._coming else None

    def apply(self, until: float = float("inf")) -> None:
        """Apply what is to be applied until then: all of it, without a time."""
        while self._coming and self._coming[0][0] <= until:
            _, changed, seen = self._coming.popleft()
            for path, znode in changed.items():
                if znode is None:
                    self.tree.pop(path, None)
                else:
                    self.tree[path] = znode
            for sight in seen:
                self._show(sight)

    def _show(self, sight: Sight) -> None:
        links = self.watches.pop((sight.children, sight.path), {})
        if sight.kind == "DELETED" and sight.children:
            # A session that watches both the data and the children is told once.
            links |= self.watches.pop((False, sight.path), {})
        for link in links:
            self._tell(link, sight.path, sight.kind)

    def watch(self, path: str, link: L, *, children: bool) -> None:
        """Tell a connection once, when that changes."""
        self.watches.setdefault((children, path), {})[link] = None

    def forget(self, link: L) -> None:
        """A connection is broken."""
        for links in self.watches.values():
            links.pop(link, None)
