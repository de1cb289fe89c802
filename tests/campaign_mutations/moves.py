"""Mutations of the coordinator: barriers, sessions, preparing, streaming, cutting, late coordinators, clean-up."""

from __future__ import annotations

from tests.campaign_mutations.mutation import ROWS, Mutation, also

TABLETS = "jobs/coordinator/tracks/tablets.py"
OPERATIONS = "jobs/coordinator/tracks/operations.py"
SOURCES = "jobs/coordinator/effects/sources.py"

STREAMING_LANDS_LATE = also(
    "streaming lands after its session was closed", "sessions: late work of a stage that is over is refused", ROWS
)
"""Only together with the fence (together.py): either of them stops late streaming by itself, which
`test_late_streaming_is_stopped_by_its_session_as_well_as_by_the_fence` proves by going through every interleaving.
"""

# Not among them: that `if_unmoved` compares only the name of an operation on the ring. Its events say the same by
# themselves (events/operations.py). A step forth is accepted of one that nobody cancels, whose next step it is, and so
# is a step back of one that is cancelled, that is as far. An operation only goes forth until it is cancelled, and only
# back from then on, so it is never twice as far in the same direction: what the events accept is what it was.

MUTATIONS = (
    also(
        "rows of a replica that goes are handed to one of those that stay",
        "104: what goes without another one coming is handed to all that stay",
        ROWS,
    ),
    also("a replica is prepared again and again", "015: a replica is prepared once for each transition", ROWS),
    also("what was prepared in epochs that were lost counts", "015, 017: a mark of lost epochs does not count", ROWS),
    also(
        "a file is cut without a look at its digest", "022, 055: whoever cuts a file verifies what it takes of it", ROWS
    ),
    Mutation(
        "a tablet goes on without a barrier",
        "003: a step is followed when no quorum of before is free of a fence",
        TABLETS,
        "if self._is_prepared(one) and self._acknowledged(metadata, one)]\n",
        "if self._is_prepared(one)]\n",
        ROWS,
    ),
    Mutation(
        "writes follow reads to the new replicas without a barrier",
        "003: a barrier is between any two stages that are not safe together",
        TABLETS,
        "Stage.WRITE_BOTH_READ_OLD | Stage.WRITE_BOTH_READ_NEW | Stage.USE_NEW\n",
        "Stage.WRITE_BOTH_READ_OLD | Stage.USE_NEW\n",
        ROWS,
    ),
    Mutation(
        "an operation on the ring goes on without a barrier",
        "014: START and MID are followed behind their barriers",
        OPERATIONS,
        "        if work.key in self._passed or (work.going_back and work.last is Step.MID):\n",
        "        if True:\n",
        ROWS,
    ),
    Mutation(
        "a barrier gives way with time",
        "003: a barrier relaxes to QUORUM, never below",
        "jobs/coordinator/fencing.py",
        "        if time.monotonic() - since <= self._seconds or not passes(BarrierLevel.QUORUM):\n",
        "        if time.monotonic() - since <= self._seconds:\n",
        ROWS,
    ),
    Mutation(
        "the pending replica need not be fenced",
        "003: sessions are opened and closed at the pending replica, so it is among the fenced ones",
        TABLETS,
        "    return barrier_of(transition, required=receiving(metadata, transition) if going_on else [])\n",
        "    return barrier_of(transition)\n",
        ROWS,
    ),
    Mutation(
        "a session stays open at the replica",
        "sessions become exactly those of the metadata; vacuum deletes nothing while one is open",
        "jobs/replicas/fences.py",
        "    outcome = _change(address, epoch, lambda current: current if sessions is None else sessions)\n",
        "    outcome = _change(address, epoch, lambda current: current if sessions is None else current | sessions)\n",
        ROWS,
    ),
    Mutation(
        "rows are streamed from a replica that is not fenced",
        "a source is fenced at the epoch of the step before it is looked at",
        SOURCES,
        "        if snapshot.fence < self._epoch:\n",
        "        if False:\n",
        ROWS,
    ),
    Mutation(
        "rows are streamed from an older copy",
        "027: a replica that lacks what it has acknowledged is no source",
        SOURCES,
        "        return SideEffectFailed(older_copy) if older_copy else snapshot\n",
        "        return snapshot\n",
        ROWS,
    ),
    Mutation(
        "a rebuild takes whoever answers",
        "003: the sources of a rebuild meet every quorum",
        SOURCES,
        "            if have < count and not self._is_given_up(",
        "            if not have and not self._is_given_up(",
        ROWS,
    ),
    Mutation(
        "a tablet goes on with the files that have arrived",
        "a stage is left when all of its files are there",
        "jobs/coordinator/effects/tablets.py",
        "    if copied.failed:\n",
        "    if False:\n",
        ROWS,
    ),
    Mutation(
        "a stream of the ring ends with the files that have arrived",
        "014: a stream ends when nothing is left to bring",
        "jobs/coordinator/effects/ring.py",
        "    if copied.failed:\n",
        "    if False:\n",
        ROWS,
    ),
    Mutation(
        "ranges are read before they are streamed",
        "014: MID comes when every gained range is streamed",
        OPERATIONS,
        "        if not self._is_streamed(metadata, work):\n            return False\n",
        "",
        ROWS,
    ),
    Mutation(
        "what was streamed leaves no receipt",
        "027: what was streamed counts from the next step on",
        "jobs/coordinator/effects/replicas.py",
        "        case Acknowledged():\n            leave_receipt(receipts, ",
        "        case Acknowledged():\n            leave_receipt(None, ",
        ROWS,
    ),
    Mutation(
        "replicas that stay do not get what goes",
        "014: what a replica has that goes without another one coming is brought to those that stay",
        "metastore/planning/ring_changes.py",
        "    return _joined([*gains, *_for_those_that_stay(volumes, change)])\n",
        "    return _joined(gains)\n",
        ROWS,
    ),
    Mutation(
        "a late coordinator moves a tablet on by its stage alone",
        "a stage does not say whose transition it is: what was planned has to be there still",
        TABLETS,
        "        valid = [change for change, key in zip(changes, keys, strict=True) if now.get(key) == then[key]]\n",
        "        valid = [change for change, key in zip(changes, keys, strict=True) if key in now]\n",
        ROWS,
    ),
    Mutation(
        "a late coordinator drops what has come since",
        "a drop that was planned below the fence is refused",
        "jobs/replicas/commits.py",
        "        if snapshot.fence > epoch:\n            return FencedOff(snapshot.fence)\n"
        "        gone = merged(ranges)\n"
        "        removes = [file for file in snapshot.all_files.values() if _loses_rows(file, gone)]\n",
        "        gone = merged(ranges)\n"
        "        removes = [file for file in snapshot.all_files.values() if _loses_rows(file, gone)]\n",
        ROWS,
    ),
    Mutation(
        "a late sweep takes what operations bring",
        "a sweep leaves alone what prepared operations bring",
        "jobs/coordinator/effects/sweeping.py",
        "            holds = [*owned[table_id].get(volume, ()), *coming.get(replica, ())]\n",
        "            holds = [*owned[table_id].get(volume, ())]\n",
        ROWS,
    ),
    Mutation(
        "a sweep that was held goes past a fence that is ahead",
        "a sweep is under a fence at its epoch: what came by later operations is behind a newer one",
        "jobs/coordinator/effects/replicas.py",
        "    _require_dropped(metadata, volume, drop_ranges(place, ranges, metadata.fence))\n",
        "    fence = max(metadata.fence, open_snapshot(place).fence)\n"
        "    _require_dropped(metadata, volume, drop_ranges(place, ranges, fence))\n",
        ROWS,
    ),
    Mutation(
        "a tablet stays on the replica that it has left",
        "the replica that a tablet has left drops it: space comes back",
        TABLETS,
        "                clean_up_leaving(cluster.storage, metadata, group)\n",
        "                pass\n",
        ROWS,
    ),
    Mutation(
        "a request ends without a sweep",
        "a request that is done says that every node holds what it owns",
        "jobs/coordinator/tracks/request_scheduling.py",
        "        self._sweeper.sweep(metadata, request)\n",
        "",
        ROWS,
    ),
)
