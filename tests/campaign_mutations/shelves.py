"""Mutations of tables that are dropped and can be restored."""

from __future__ import annotations

from tests.campaign_mutations.mutation import ROWS, ROWS_TABLES, Mutation

GIVEN_UP = "jobs/administration/given_up.py"
EVENTS = "metastore/metadata/events/dropped_tables.py"

MUTATIONS = (
    Mutation(
        "a dropped table is kept until vacuum comes, and no longer",
        "075: it can be restored for as long as it was said",
        GIVEN_UP,
        "        if times[one.epoch] <= min(keep_ms, now_ms - int(one.keep_seconds * 1000))\n",
        "        if times[one.epoch] <= keep_ms\n",
        ROWS_TABLES,
    ),
    Mutation(
        "vacuum does not wait until a dropped table is forgotten",
        "075: nothing of a table goes before the log says that it cannot be restored",
        GIVEN_UP,
        "                shelved[gone.table_id] = times[entry.epoch]\n",
        "                shelved[gone.table_id] = dropped[gone.table_id] = times[entry.epoch]\n",
        ROWS_TABLES,
    ),
    Mutation(
        "a table is restored where its ranges have changed hands",
        "075: its rows went with none of them",
        EVENTS,
        "                metadata.rings.epoch <= record.epoch,\n",
        "                True,\n",
        ROWS,
    ),
)
