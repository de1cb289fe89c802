"""What a pipeline says when it cannot keep its promise. It never reports a success on a guess."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import VolumeId
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.rejections import Code

SHOWN = 8
"""Names of ranges in a message; the rest is counted."""


class NamedRanges(msgspec.Struct, frozen=True):
    """Ranges of a table for people: `kind` (tablet, or range on the ring), their numbers, and what they are called."""

    kind: str
    numbers: tuple[int, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else ""
        return f"{len(self.names)} {self.kind}(s) ({', '.join(self.names[:SHOWN])}{more})"


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


class TableAltered(Rejected):
    """The columns of a table are others than those that a read was made for: it is asked again, of the table of now."""

    def __init__(self, table: str, epoch: int) -> None:
        super().__init__(
            Code.SCHEMA_CHANGED, f"the columns of table {table} were changed by epoch {epoch}", hint="Try again"
        )


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
