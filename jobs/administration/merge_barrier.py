"""Letting merges end that were planned before a change of their table.

A merge counts when its entry is in the journal, whatever the replicas know by then. So who changes what rows have to
satisfy takes the next number for a merge that changes nothing: one that had counted before is finished by that, and who
was planning meanwhile finds the number taken, and plans again, with the table of now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from epochlake.jobs.gate.arrow_rows import ArrowRows, rows_to_write
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.merge_journal import MergeCounts
from epochlake.jobs.gate.merging import Fixed, Merging
from epochlake.metastore.metadata.model import Table

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store


class _Nothing:
    """A merge that has read nothing, and changes nothing."""

    counts = MergeCounts()

    def __init__(self, table: Table) -> None:
        schema = pa.schema([(column.name, arrow_type(column.type)) for column in table.columns])
        self.rows: ArrowRows = rows_to_write(schema.empty_table(), table)

    def still_holds(self) -> bool:
        return True


def let_merges_end(cluster: Store, table: Table) -> None:
    """Wait until no merge into a table that was planned before can count any more.

    Raises MergeContended and MergeUnfinished where that is not so yet.
    """
    if table.append_only:
        return  # nobody merges into it
    with Gate(cluster, "alter") as gate:
        Merging(gate, table).run("merge", lambda *_: _Nothing(table), Fixed(Count(0, None)))
