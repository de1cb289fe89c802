"""Looking whether the rows that a table has satisfy its checks, and saying so in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

import msgspec
import pyarrow as pa
from epochlake.jobs.administration.altering import checks_of, fence_replicas
from epochlake.jobs.gate.check_expressions import read_check
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.routing import grouped
from epochlake.metastore.committing.changes import Call, Change, Options
from epochlake.metastore.errors import Rejected, WaitTimeout
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AlterColumns
from epochlake.metastore.metadata.model import Table
from epochlake.placement.consistency import BarrierLevel, ConsistencyLevel
from epochlake.placement.rejections import Code
from epochlake.placement.showing import Shown

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

EXAMPLES = 5


class CheckFound(Shown, msgspec.Struct, frozen=True):
    """What the rows of a table make of a check: `violated` by so many, as by those with the keys in `examples`."""

    name: str
    predicate: str
    violated: int
    examples: tuple[dict[str, object], ...] = ()


class ChecksFound(Shown, msgspec.Struct, frozen=True):
    """What `validate_checks` found of `rows` rows; `epoch`: at which the log says that all satisfy what is validated.

    Null where a check is violated by some row: then the log says nothing new.
    """

    table: str
    rows: int
    checks: tuple[CheckFound, ...]
    epoch: int | None = None

    @property
    def holds(self) -> bool:
        return not any(one.violated for one in self.checks)


def validate_checks(
    cluster: Cluster, full_name: str, names: Sequence[str] = (), **options: Unpack[Options]
) -> ChecksFound:
    """Read all rows of a table, on every replica, and where all satisfy its checks (or those named) say so in the log.

    Rows that a replica got before a check was added are there, and may violate it; none that is written since does. So
    what is validated once stays so. Every replica has to answer, as a row of a write that failed may be on one alone.

    Raises Rejected (unknown-check; stale-plan where the table was altered meanwhile), ConsistencyNotReached and
    WaitTimeout where not every replica answers or ranges are moving: worth trying again.
    """
    # Only here: what scans rows brings pandas along, for which commands that read none are not to pay.
    from epochlake.jobs.gate.arrow_reading import question
    from epochlake.jobs.replicas.row_values import shown_rows
    from epochlake.jobs.replicas.scanning import scan

    table = cluster.catch_up().table(full_name)
    asked = checks_of(table, names) if names else list(table.checked)
    if not asked:
        return ChecksFound(table.full_name, 0, ())
    fence_replicas(cluster, table.table_id, BarrierLevel.ALL)
    rows, found = 0, {one.name: CheckFound(one.name, one.predicate, 0) for one in asked}
    read = {one.name: read_check(one.name, one.predicate, table) for one in asked}
    columns = dict.fromkeys([*table.primary_key, *(name for one in read.values() for name in one.columns)])
    with Gate(cluster, "validate") as gate:
        of = question(table, list(columns))
        plan = gate.plan_read(table, ConsistencyLevel.ALL)
        _require_still(gate.planning.metadata, table)
        for batch in scan(plan, of.asked):
            rows += batch.num_rows
            for name, check in read.items():
                false = pa.table(batch).filter(~check.expression)
                if false.num_rows:
                    keys = shown_rows(false.select(list(table.primary_key)).slice(0, EXAMPLES))
                    one = found[name]
                    examples = (*one.examples, *keys)[:EXAMPLES]
                    found[name] = CheckFound(name, one.predicate, one.violated + false.num_rows, examples)
    told = ChecksFound(table.full_name, rows, tuple(found.values()))
    if not told.holds or all(one.validated is not msgspec.UNSET for one in asked):
        return told
    change = ChecksValidated(table.full_name, table.version, tuple(found))
    return msgspec.structs.replace(told, epoch=cluster.commit(change, **options).epoch)


class ChecksValidated(Change[AlterColumns], frozen=True):
    """What `validate_checks` commits: every row satisfied these checks while the table had this version."""

    verb: ClassVar[str] = "validate checks"
    full_name: str
    version: str
    names: Sequence[str]

    def plan(self, metadata: ClusterMetadata, call: Call) -> AlterColumns:
        table = metadata.table(self.full_name)
        if table.version != self.version:
            raise Rejected(
                Code.STALE_PLAN, f"{self.full_name} was altered while its rows were looked at", hint="Validate again"
            )
        checks = tuple(
            msgspec.structs.replace(one, validated=metadata.epoch)
            if one.name in self.names and one.validated is msgspec.UNSET
            else one
            for one in table.checked
        )
        return AlterColumns(table.table_id, table.full_name, table.version, table.numbered, checks)


def _require_still(metadata: ClusterMetadata, table: Table) -> None:
    """That no range is on its way: what is written to a replica that is not read yet would not be looked at."""
    if any(len(set(map(tuple, one.write_sets))) > 1 for one in grouped(metadata.placements(table.table_id)).distinct):
        raise WaitTimeout(
            f"rows of {table.full_name} are moving to other replicas, so that not all can be looked at",
            hint="Validate again when nothing moves: `epochlake coordinator run --until-idle`",
        )
