"""What the metadata, plans of the topology and the coordinator rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GENERATED = ("tests/unit/jobs/test_generated_columns.py",)
TTL = "tests/unit/jobs/test_time_to_live.py"

MUTANTS = (
    Mutant(
        "rows of a replica that goes are handed to one of those that stay",
        "metastore/metadata/model.py",
        "        return (self.pending,) if self.comes else tuple(dict.fromkeys((self.pending, *self.new_replicas)))\n",
        "        return (self.pending,)\n",
        ("tests/unit/jobs/test_tablet_replication.py",),
    ),
    Mutant(
        "a replica is given up though one that stays has not got its rows",
        "jobs/coordinator/effects/tablets.py",
        "    return [v for v in transition.receiving if v == transition.pending or not is_gone(metadata, v)]\n",
        "    return [transition.pending]\n",
        ("tests/unit/jobs/test_tablet_replication.py",),
    ),
    Mutant(
        "what a change of replication has left that was cancelled between two steps stays",
        "jobs/coordinator/tracks/request_scheduling.py",
        "        self._clean_up_cancelled(metadata)\n",
        "",
        ("tests/unit/jobs/test_coordinator_ring_failures.py",),
    ),
    Mutant(
        "a datacenter goes while those that stay lack replicas",
        "metastore/planning/tablet_replication.py",
        "            if not lacks or (comes and not replication.get(name)):\n",
        "            if not lacks:\n",
        ("tests/unit/metastore/test_tablet_replication_planning.py", "tests/unit/jobs/test_tablet_datacenters.py"),
    ),
    Mutant(
        "a field gets the name in files of another one that was dropped",
        "metastore/metadata/events/table_fields.py",
        "    taken = {name.lower() for name in known} | within.dropped(stored)\n",
        "    taken = {name.lower() for name in known}\n",
        ("tests/unit/metastore/test_events.py",),
    ),
    Mutant(
        "what a generated column reads is renamed",
        "metastore/metadata/events/table_generated.py",
        "(before.name, before.type) == (now.name, now.type))",
        "before.type == now.type)",
        GENERATED,
    ),
    Mutant(
        "a majority is a half",
        "placement/consistency.py",
        "    return count // 2 + 1\n",
        "    return (count + 1) // 2\n",
        ("tests/unit/placement/test_consistency.py", "tests/unit/metastore/test_quorums.py"),
    ),
    Mutant(
        "only the last time to live says what has expired",
        "metastore/metadata/time_to_live.py",
        "        if one.since <= at and one.seconds is not None:\n",
        "        if one is table.lifetimes[-1] and one.seconds is not None:\n",
        (f"{TTL}::test_rows_that_have_expired_stay_so_with_a_longer_ttl_and_with_none",),
    ),
)
