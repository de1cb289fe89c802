"""Mutations of change streams: what is known before it lands, what is told when, once, in which order, how long."""

from __future__ import annotations

from tests.campaign_mutations.mutation import ROWS, Mutation

INTENTS = "jobs/replicas/change_intents.py"
INDEX = "jobs/replicas/change_index.py"
READING = "jobs/replicas/change_reading.py"
STREAMING = "jobs/gate/change_streaming.py"
SETTLING = "jobs/upkeep/change_settling.py"
PARTS = "jobs/gate/change_parts.py"
RETENTION = "jobs/upkeep/change_retention.py"
WRITING = "jobs/gate/writing.py"

MUTATIONS = (
    Mutation(
        "readers of a generation go on where the next one has begun",
        "128: a generation ends where the next one begins, whether that is published or not",
        PARTS,
        "        if later.number == generation + 1:\n",
        "        if later.number == generation + 2:\n",
        ROWS,
    ),
    Mutation(
        "a write is not appended to the index of changes",
        "070: a write of a table with a stream is in the index before it is told that it has succeeded",
        WRITING,
        "            recording.landed(planning.metadata, landed.epoch)\n",
        "",
        ROWS,
    ),
    Mutation(
        "a write is appended to the index before its level is reached",
        "070: what is appended has reached its level",
        WRITING,
        "            landed = phase.land()\n            recording.landed(planning.metadata, landed.epoch)\n",
        "            recording.landed(planning.metadata, planning.metadata.epoch)\n            landed = phase.land()\n",
        ROWS,
    ),
    Mutation(
        "a file that is in the index is appended again",
        "070: the index has each staged file once, looked for after the last position with an older newest time",
        INDEX,
        "        return [file for file in files if file.file_id not in there]\n",
        "        return [file for file in files if file.file_id not in there or True]\n",
        ROWS,
    ),
    Mutation(
        "what may land is not put at the root before it lands",
        "070: whatever lands is known before, so what lost its writer is found",
        INTENTS,
        "            if is_complete(data):\n",
        "            if not is_complete(data):\n",
        ROWS,
    ),
    Mutation(
        "a write that some replica has is forgotten",
        "070: what a read may show comes into the stream",
        SETTLING,
        "    live = _live(cluster, table, files, opened)\n",
        "    live = False\n",
        ROWS,
    ),
    Mutation(
        "a write is settled as it lies, without reaching a level",
        "070: what too few replicas have is brought to its level before it is in the stream",
        SETTLING,
        "    writing.land(table, located.files, ConsistencyLevel.QUORUM, located, write_id=intent.write_id, put=put)\n",
        "    _append(index, intents, intent)\n",
        ROWS,
    ),
    Mutation(
        "nothing is late",
        "071: a change that comes after a newer one of its key is told to be late",
        READING,
        "        late = _late(storage, index, entry, file, wanted.table)\n",
        "        late = np.zeros(file.rows, dtype=bool)\n",
        ROWS,
    ),
    Mutation(
        "all of a file is late of which one row is",
        "071: what is late is told of each row",
        READING,
        "    newer_rows: NDArray[np.bool_] = has_newer(keys, tokens, order)[: file.rows]\n    return newer_rows\n",
        "    newer_rows: NDArray[np.bool_] = has_newer(keys, tokens, order)[: file.rows]\n"
        "    return newer_rows | newer_rows.any()\n",
        ROWS,
    ),
    Mutation(
        "what a late change is compared with goes before it",
        "071: entries stay that a kept one has to be compared with",
        RETENTION,
        "    last = index.compared_from(over[-1].position, index.tail().position) if over else 0\n",
        "    last = over[-1].position if over else 0\n",
        ROWS,
    ),
    Mutation(
        "retention does not ask for readers",
        "070: a named reader holds back what it has not read, up to the limit",
        RETENTION,
        "        elif unread and slowest is not None and _committed_at(index, entry) >= limit:\n",
        "        elif unread and slowest is not None and not limit:\n",
        ROWS,
    ),
    Mutation(
        "a reader passes an entry before it has been given all of it",
        "070: a position is passed when all of its changes have been given out",
        STREAMING,
        "            for entry in self._index.entries(self.position, end):\n",
        "            for entry in self._index.entries(self.position, end):\n"
        "                self.position = entry.position\n",
        ROWS,
    ),
    Mutation(
        "a commit of the index goes over others",
        "070: an entry is put as exactly the version after what was read",
        INDEX,
        "                position = tail.position + 1\n                if left and",
        "                position = delta_commits.newest_version(self._storage, self.uri) + 1\n"
        "                if left and",
        ROWS,
    ),
    Mutation(
        "an entry that was made ready is used whatever has come before it",
        "100: what was made ready is used where the tail is still the same commit",
        INDEX,
        "                if left and left[0].fits(self.uri, tail, write_id, epoch, level, by, new):\n",
        "                if left:\n",
        ROWS,
    ),
)
