"""How far a long command has come: a bar on a terminal, nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochlake.jobs.cli.session import Output, Session

if TYPE_CHECKING:
    from epochlake.jobs.exchange.loading import LoadedPart


@contextmanager
def load_bar(session: Session) -> Iterator[Callable[[LoadedPart, int, int], None]]:
    """For `load_files`: the bytes of files that are through."""
    with _bar(session, "loading") as step:
        yield lambda part, done, of: step(done, of)


@contextmanager
def files_bar(session: Session) -> Iterator[Callable[[int, int], None]]:
    """For `adopt`: the files that are through."""
    with _bar(session, "loading") as step:
        yield step


@contextmanager
def _bar(session: Session, what: str) -> Iterator[Callable[[int, int], None]]:
    if session.output is Output.JSON or not session.errors.is_terminal:
        yield lambda done, of: None
        return
    from rich.progress import Progress  # only here: most commands show none

    with Progress(console=session.errors, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)
