"""What a Ctrl-C says: whether anything was committed, and what to do; imported before everything heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from epochlake.placement.errors import EpochlakeError

NOTHING = "interrupted; nothing was committed"


class Interrupted(KeyboardInterrupt):
    """A Ctrl-C, with what was done until then; `request_id` of the change that was being committed."""

    def __init__(self, said: str, request_id: str | None = None) -> None:
        super().__init__(said)
        self.said = said
        self.request_id = request_id


@contextmanager
def interrupted_says(said: str) -> Iterator[None]:
    """What a Ctrl-C in the block says, and after it. For commands that do many things, each complete in itself."""
    _so_far.append(Interrupted(f"interrupted; {said}"))
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {said}") from None


_so_far: list[Interrupted] = []


def begin() -> None:
    """A command begins: nothing was committed yet."""
    _so_far.clear()


def so_far() -> Interrupted:
    """What a Ctrl-C says now, where nothing else speaks for the command: while a commit is told, or the end is near."""
    return _so_far[-1] if _so_far else Interrupted(NOTHING)


@contextmanager
def committing(request_id: str, epoch_of: Callable[[str], int | None]) -> Iterator[Callable[[int], None]]:
    """A Ctrl-C while a change is committed says whether it is in the log, where `epoch_of` looks for the request.

    The block calls what it gets with the epoch of the commit: a Ctrl-C at any later moment of the command says that.
    """
    try:
        yield lambda epoch: _so_far.append(Interrupted(_committed(request_id, epoch), request_id))
    except KeyboardInterrupt:
        raise Interrupted(_outcome(request_id, epoch_of), request_id) from None


def _committed(request_id: str, epoch: int) -> str:
    return f"interrupted, but the change was committed: it is epoch {epoch}, request {request_id}"


def _outcome(request_id: str, epoch_of: Callable[[str], int | None]) -> str:
    again = f"run the command again with --request-id {request_id}: it is committed at most once"
    try:
        epoch = epoch_of(request_id)
    except (EpochlakeError, KeyboardInterrupt):
        return f"interrupted; it is not known whether the change was committed. To be sure {again}"
    if epoch is not None:
        return _committed(request_id, epoch)
    return f"interrupted; the change is not in the log. To be sure {again}"
