"""What the servers of an ensemble rest on that are kept by machines."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHOICE = "jobs/upkeep/coordination_choice.py"
CHOSEN = ("tests/unit/jobs/test_coordination_choice.py",)
FILES = "metastore/coordination/server_files.py"
STARTED = ("tests/unit/metastore/test_server_files.py",)
PUBLISHED = ("tests/unit/metastore/test_published.py",)
BESIDE_AGENTS = ("tests/unit/jobs/agent/test_coordination_server.py",)

MUTANTS = (
    Mutant(
        "a member of the ensemble that is silent for a moment is given up",
        CHOICE,
        "        if trouble and silent < known.grace:\n",
        "        if False:\n",
        CHOSEN,
    ),
    Mutant(
        "an ensemble gets smaller because servers are missing",
        CHOICE,
        "    if not count or count < min(wanted, voters - (voters + 1) % 2):\n",
        "    if not count:\n",
        CHOSEN,
    ),
    Mutant(
        "servers of an ensemble are exchanged on a way without a quorum",
        CHOICE,
        "        if _is_safe(known.members, servers, alive):\n",
        "        if True:\n",
        CHOSEN,
    ),
    Mutant(
        "an operator's own server is thrown out of the ensemble",
        CHOICE,
        "        if not trouble and number not in runs_on:\n",
        "        if False:\n",
        CHOSEN,
    ),
    Mutant(
        "a coordinator that was paused has seen servers silent meanwhile",
        "jobs/upkeep/coordination_member_track.py",
        "min(now - self._looked_at, 2 * RETRY_SECONDS)",
        "now - self._looked_at",
        CHOSEN,
    ),
    Mutant(
        "a voter of the ensemble whose data is gone votes again",
        FILES,
        "    if there.servers is None or there.emptied:\n",
        "    if there.servers is None:\n",
        STARTED,
    ),
    Mutant(
        "a server that has no data elects those who do not have what was decided",
        FILES,
        '        kept.append(f"{_LINE_OF_BLANK_SERVERS}false")\n',
        "",
        STARTED,
    ),
    Mutant(
        "a member of the ensemble is one of its own beside it",
        FILES,
        "    if voters == {server.number} != {one.number for one in ensemble.voters}:\n",
        "    if False:\n",
        STARTED,
    ),
    Mutant(
        "a server with the data of another ensemble follows this one",
        FILES,
        "    _require_same_ensemble(storage, directory, members)\n",
        "",
        STARTED,
    ),
    Mutant(
        "a server that has left the ensemble starts with what it knew of it",
        FILES,
        "            )\n        return True\n    if there.servers is None",
        "            )\n        return not knows_itself\n    if there.servers is None",
        STARTED,
    ),
    Mutant(
        "two ZooKeeper servers run in one directory",
        "jobs/agent/server_process.py",
        "    if not lock_within(handle, fcntl.LOCK_EX, time.monotonic() + LOCK_SECONDS):\n",
        "    if False:\n",
        BESIDE_AGENTS,
    ),
    Mutant(
        "a ZooKeeper server outlives the agent that it was started by",
        "jobs/agent/coordination_server.py",
        "        finally:\n            await self._stop()\n",
        "        finally:\n            pass\n",
        BESIDE_AGENTS,
    ),
    Mutant(
        "an ensemble that went back is taken for the published one",
        "metastore/coordination/publication.py",
        "        if published.seal in self.seals:\n",
        "        if self.ensemble == published.ensemble:\n",
        PUBLISHED,
    ),
    Mutant(
        "what was published and has rotted is believed",
        "metastore/coordination/published.py",
        "    if hashlib.sha256(kept.published).hexdigest() != kept.digest:\n",
        "    if False:\n",
        PUBLISHED,
    ),
    Mutant(
        "what was published is written over by who comes late",
        "metastore/coordination/published.py",
        "    if not storage.put_if_absent(path_of(directory, published.number), msgspec.json.encode(kept)):\n",
        "    if storage.replace_bytes(path_of(directory, published.number), msgspec.json.encode(kept)):\n",
        PUBLISHED,
    ),
    Mutant(
        "two changes of an ensemble are begun at once by one coordinator",
        "jobs/upkeep/aside.py",
        "            if self._working or self._ended:\n",
        "            if False:\n",
        ("tests/unit/jobs/test_aside.py",),
    ),
)
