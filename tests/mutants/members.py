"""What log members rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = ("tests/unit/metastore/test_member_seats.py",)

MUTANTS = (
    Mutant(
        "a blank disk counts as the log member that it stands in for",
        "metastore/log/moving_members.py",
        "                if doubt := self._member(uri).doubt(one):\n",
        "                if doubt := '':\n",
        TESTS,
    ),
    Mutant(
        "a log member that was restored from a copy counts when the root is lost",
        "metastore/log/seats.py",
        "    if abs(changed - seat.changed_ms) > TOLERANCE_MS:\n",
        "    if False:\n",
        TESTS,
    ),
    Mutant(
        "a log member of which a part is gone counts",
        "metastore/log/seats.py",
        "    if (held.adopted and not held.promised) or (not held.adopted and storage.exists(place + _WHOLE)):\n",
        "    if False:\n",
        TESTS,
    ),
    Mutant(
        "a log member of an earlier release counts whatever it holds",
        "metastore/log/seats.py",
        "        if held.promised or held.adopted:\n",
        "        if True:\n",
        TESTS,
    ),
    Mutant(
        "a change of log members is refused when some have promised it",
        "metastore/log/moving_members.py",
        "        self._longest(looked, known[0].cluster_id, require)\n",
        "",
        TESTS,
    ),
    Mutant(
        "the generation of log members that was adopted is not asked for its majority",
        "metastore/log/moving_members.py",
        "        newest = theirs or {one for one in asked.relevant if one.number == adopted}\n",
        "        newest = set[Generation]()\n",
        TESTS,
    ),
    Mutant(
        "a root is restored from log members without saying so",
        "metastore/log/moving_members.py",
        "        generations.begin_restoring(self._storage, self._register, generation)\n",
        "",
        TESTS,
    ),
    Mutant(
        "a process that reports without log members does not look for them again",
        "metastore/log/no_members.py",
        "        self.require_none()\n        self.root.append(entries)\n",
        "        self.root.append(entries)\n",
        TESTS,
    ),
    Mutant(
        "the first log members are named without a fence",
        "metastore/log/moving_members.py",
        "        root.fence()\n",
        "",
        TESTS,
    ),
    Mutant(
        "copies of generations that are over stay on log members",
        "metastore/log/moving_members.py",
        "        self._clear_up(generation)\n        return generation\n",
        "        return generation\n",
        TESTS,
    ),
    Mutant(
        "what a log member alone had when the root was lost stops every change of members",
        "metastore/log/moving_members.py",
        "        since = min(newest, current.number if current is not None else 0)\n",
        "        since = 0\n",
        TESTS,
    ),
    Mutant(
        "a root that goes back is not compared with the members that it names",
        "metastore/log/moving_members.py",
        "            if not max(1, since) <= number < generation.number:\n",
        "            if not since < number < generation.number:\n",
        TESTS,
    ),
    Mutant(
        "copies of before are not compared where all members of now are given up",
        "metastore/log/moving_members.py",
        "        since = min(newest, current.number if current is not None else 0)\n",
        "        since = current.number if current is not None else 0\n",
        TESTS,
    ),
)
