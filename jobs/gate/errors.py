"""What a pipeline says when it cannot keep its promise. It never reports a success on a guess."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.gate.moments import words_of_moment
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Column, VolumeId
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.rejections import Code
from epochlake.placement.showing import plural

if TYPE_CHECKING:
    from epochlake.jobs.replicas.staging import StagedFile

SHOWN = 8
"""Names of ranges in a message; the rest is counted."""


class NamedRanges(msgspec.Struct, frozen=True):
    """Ranges of a table for people: `kind` (tablet, or range on the ring), their numbers, and what they are called."""

    kind: str
    numbers: tuple[int, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else ""
        return f"{plural(len(self.names), self.kind)} ({', '.join(self.names[:SHOWN])}{more})"


class ConsistencyNotReached(EpochlakeError):
    """The consistency level was not reached for some tablets or ranges. What landed stays; retrying the same batch is
    safe.

    `ranges` are those, by the epoch `epoch`, at which they were last judged; `tablets` their numbers; `replicas` what
    each volume that is missing said.
    """

    exit_code = 75

    def __init__(self, asked: str, level: str, epoch: int, ranges: NamedRanges, replicas: Mapping[str, str]) -> None:
        said = "; ".join(f"{volume}: {reason}" for volume, reason in replicas.items()) or "placement kept moving"
        super().__init__(
            f"{asked} did not reach {level} at epoch {epoch} for {ranges}. Replicas that are missing: {said}",
            hint="Bring them back, or replace their node, and try again",
        )
        self.level = level
        self.epoch = epoch
        self.ranges = ranges
        self.tablets = ranges.numbers
        self.replicas = dict(replicas)


class MergeContended(EpochlakeError):
    """A merge was planned again as often as it may be: each time others had merged, or written what it had read.

    Nothing of it has landed.
    """

    exit_code = 75

    def __init__(self, table: str, times: int) -> None:
        super().__init__(
            f"nothing was merged into {table}: of {times} tries each one found what it had read changed by others",
            hint="Merge again, or let the others end first",
        )


class MergeUnfinished(EpochlakeError):
    """A merge counts, and its rows have not reached the level yet. The next merge of the table finishes it."""

    exit_code = 75

    def __init__(self, table: str, batch: str | None, why: str) -> None:
        again = f"Merge again under the name {batch!r}, which" if batch else "The next merge into the table"
        super().__init__(
            f"the merge into {table} counts, and has not been brought to all replicas that it needs: {why}",
            hint=f"{again} finishes it; merged under another name, the source would count twice",
        )


class RowsUnreadable(EpochlakeError):
    """Rows that a read must show have no whole copy on any replica that answers. Nothing is left out silently.

    `damaged`: for each copy, its place and path, what is wrong with it; `volumes` are where these are. `unreachable`:
    what replicas said that do not answer and may have whole copies.
    """

    def __init__(
        self,
        table: str,
        damaged: Mapping[str, str],
        unreachable: Mapping[str, str],
        volumes: Collection[VolumeId] = (),
    ) -> None:
        named = "; ".join(f"{copy} ({damage})" for copy, damage in list(damaged.items())[:SHOWN])
        more = f" and {len(damaged) - SHOWN} more" if len(damaged) > SHOWN else ""
        away = "".join(f" {place} does not answer: {reason}." for place, reason in unreachable.items())
        advice = "Bring it back and read again" if away else "Restore one of the files from a backup"
        given_up = "" if away else f", or give them up with `epochlake repair {table} --accept-loss`"
        super().__init__(
            f"the read of {table} cannot show all rows: no whole copy is left of {named}{more}.{away}",
            hint=f"{advice}{given_up}",
        )
        self.damaged = dict(damaged)
        self.unreachable = dict(unreachable)
        self.volumes = frozenset(volumes)
        self.exit_code = 75 if unreachable else 1


class HistoryNotKept(EpochlakeError):
    """Files are gone that tell of the time that was asked for. No row is left out, and none shown that was deleted.

    `as_of`: the time, `since`: the earliest one that can be read as far as is known here, in microseconds since 1970.
    `unreachable`: what replicas said that do not answer and may have these files.
    """

    def __init__(self, table: str, as_of: int, since: int, unreachable: Mapping[str, str], why: str = "") -> None:
        away = "".join(f" {place} does not answer: {reason}." for place, reason in unreachable.items())
        why = why or "what compaction has put together since is not kept any more as it was."
        again = "Bring them back, or read" if away else "Read"
        super().__init__(
            f"{table} cannot be read as it was at {words_of_moment(as_of)}: {why}{away}",
            hint=f"{again} it as of {words_of_moment(since)} or later; `epochlake table history {table} --keep` keeps "
            "more from now on",
        )
        self.as_of = as_of
        self.since = since
        self.unreachable = dict(unreachable)
        self.exit_code = 75 if unreachable else 1


class TableAltered(Rejected):
    """The columns of a table are others than those that a read was made for: it is asked again, of the table of now."""

    def __init__(self, table: str, epoch: int) -> None:
        super().__init__(
            Code.SCHEMA_CHANGED, f"the columns of table {table} were changed by epoch {epoch}", hint="Try again"
        )


class StagedBefore(Rejected):
    """A write was staged before its table got a generated column, and did not land before: it is staged again.

    `files`: what was staged.
    """

    def __init__(self, table: str, columns: Sequence[Column], epoch: int, files: Sequence[StagedFile]) -> None:
        named = ", ".join(column.name for column in columns)
        super().__init__(
            Code.SCHEMA_CHANGED,
            f"the write to {table} was made before epoch {epoch}, and lacks what is generated since: {named}",
            hint="Write the rows again",
        )
        self.files = tuple(files)


class ReadDisturbed(EpochlakeError):
    """A file was found damaged while a read was running. It is noted: the next read uses another replica's copy."""

    exit_code = 75

    def __init__(self, table: str, damaged: Mapping[str, str]) -> None:
        named = "; ".join(f"{copy} ({damage})" for copy, damage in list(damaged.items())[:SHOWN])
        super().__init__(
            f"a read of {table} met a damaged file: {named}",
            hint=f"Read again: the next read uses another replica. Then run `epochlake repair {table} --check-bytes`",
        )
        self.damaged = dict(damaged)
