"""What the writer is told and what it answers: a line of JSON each."""

from __future__ import annotations

import msgspec
from epochlake.jobs.demo.checksum import Checksum
from epochlake.jobs.demo.flights import PARTS

WRITER = "epochlake.jobs.demo.writer"
"""The writer's module, for `python -m`."""


class Command(msgspec.Struct, frozen=True):
    """One of: the number of a month to write; count the rows; a level to compute the checksum of all rows at.

    Of the month the parts from `first` on, before `last`, are written in one go.
    """

    write: int | None = None
    first: int = 0
    last: int = PARTS
    count: bool = False
    checksum: str | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a command; `error` instead when it failed. Times are seconds since 1970."""

    started: float
    ended: float
    epoch: int
    rows: int = 0
    files: int = 0
    bytes: int = 0
    planned_epoch: int = 0
    rounds: int = 0
    missing: dict[str, str] = {}
    checksum: Checksum | None = None
    error: str | None = None
