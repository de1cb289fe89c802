"""Mutations of the rules of placement: quorums, stages, barriers, membership, lost nodes, racks, locks of the ring."""

from __future__ import annotations

from tests.campaign_mutations.mutation import ROWS, Mutation, also

CONSISTENCY = "placement/consistency.py"
STAGES = "placement/tablets/transitions.py"

MUTATIONS = (
    also("a majority is a half", "any two majorities overlap", ROWS),
    also("storage that was declared lost is opened", "026: lost is lost for everybody, also when it comes back", ROWS),
    Mutation(
        "a barrier counts the new replicas only",
        "003: old and new replicas are counted apart, and both",
        CONSISTENCY,
        "    for replicas in (old, new):\n",
        "    for replicas in (new,):\n",
        ROWS,
    ),
    Mutation(
        "a barrier asks for one replica too few",
        "003: the fenced replicas meet every majority",
        CONSISTENCY,
        "    return count - majority(count) + 1 if count else 0\n",
        "    return count - majority(count) if count else 0\n",
        ROWS,
    ),
    Mutation(
        "lost storage is taken for fenced",
        "026: who planned before the declaration would count it when it comes back",
        CONSISTENCY,
        "            if sum(replica in fenced for replica in left) < min(need, len(left)):\n",
        "            if len(group) - len(left) + sum(replica in fenced for replica in left) < need:\n",
        ROWS,
    ),
    Mutation(
        "new replicas are read while rows are streamed to them",
        "stages: reads move after the streaming",
        STAGES,
        "    Stage.WRITE_BOTH_READ_OLD: Selector.OLD,\n    Stage.STREAMING: Selector.OLD,\n",
        "    Stage.WRITE_BOTH_READ_OLD: Selector.OLD,\n    Stage.STREAMING: Selector.NEW,\n",
        ROWS,
    ),
    Mutation(
        "writes and reads move to the new replicas together",
        "stages: a step changes reads or writes and never both",
        STAGES,
        "    Stage.WRITE_BOTH_READ_NEW: Selector.BOTH,\n",
        "    Stage.WRITE_BOTH_READ_NEW: Selector.NEW,\n",
        ROWS,
    ),
    Mutation(
        "the way back is one step",
        "005: from write_both_read_new the way back leads over write_both_read_old",
        STAGES,
        "    Stage.WRITE_BOTH_READ_NEW: Stage.WRITE_BOTH_READ_OLD,\n",
        "    Stage.WRITE_BOTH_READ_NEW: Stage.CLEANUP_TARGET,\n",
        ROWS,
    ),
    Mutation(
        "old and new replicas are one set",
        "a write is counted in the old and in the new replicas apart (with two replicas this shows)",
        STAGES,
        "        return (old, new)\n",
        "        return (tuple(dict.fromkeys((*old, *new))),)\n",
        ROWS,
    ),
    Mutation(
        "a tablet is moved that moves already",
        "at most one transition for each tablet",
        "metastore/metadata/events/tablets.py",
        "        current is None,\n        Code.TRANSITION_IN_THE_WAY,\n",
        "        True,\n        Code.TRANSITION_IN_THE_WAY,\n",
        ROWS,
    ),
    Mutation(
        "a node leaves with tablets on it",
        "a node leaves only when no tablet names its volumes any more",
        "metastore/metadata/events/request_lifecycle.py",
        "            not waiting or _is_given_up(metadata, request),\n",
        "            True,\n",
        ROWS,
    ),
    Mutation(
        "the last quorum of rows is declared lost without force",
        "028: rows that only lost storage has acknowledged are given up by force only",
        "metastore/metadata/lost_rows.py",
        "    if at_risk:\n",
        "    if False:\n",
        ROWS,
    ),
    Mutation(
        "operations on the ring do not lock their ranges",
        "009: two operations in flight touch no common range",
        "placement/ring/locks.py",
        "    if not len(asked.starts) or not len(held.starts):\n",
        "    if True:\n",
        ROWS,
    ),
    Mutation(
        "racks are not told apart",
        "a range's replicas are on as many racks as there are",
        "placement/ring/strategies.py",
        "    if factor <= rack_count:\n        return first_of_rack\n",
        "    if factor <= rack_count:\n        return first_distinct(owners, factor)\n",
        ROWS,
    ),
)
