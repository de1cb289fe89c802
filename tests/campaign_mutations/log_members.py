"""Mutations of log members: what a majority has, what they have promised, and roots that are restored from them."""

from __future__ import annotations

from tests.campaign_mutations.mutation import LOG, Mutation

MAJORITY = "metastore/log/majority_log.py"
MEMBER = "metastore/log/log_member.py"
MOVING = "metastore/log/moving_members.py"
SEATS = "metastore/log/seats.py"

MUTATIONS = (
    Mutation(
        "a commit counts before a majority of the log members has it",
        "107: a commit is reported when a majority has it",
        MAJORITY,
        "            self._make_durable(tail, entries, asked)\n",
        "            pass\n",
        LOG,
    ),
    Mutation(
        "an epoch is read before a majority of the log members has it",
        "107: no handle hands out an entry before a majority has it",
        MAJORITY,
        "        self._ask_until_durable(tail, found)\n        self._require_whole(tail)\n",
        "        self._require_whole(tail)\n",
        LOG,
    ),
    Mutation(
        "what a lost root alone had is brought to the members of the restored one",
        "107: what the root does not hold any more is not brought to the members of a later generation",
        MAJORITY,
        "            if generation is not before:\n",
        "            if False:\n",
        LOG,
    ),
    Mutation(
        "half of the log members are a majority",
        "107: two majorities share a member",
        "metastore/log/generations.py",
        "        return len(self.members) // 2 + 1\n",
        "        return (len(self.members) + 1) // 2 if len(self.members) > 3 else 1\n",
        LOG,
    ),
    Mutation(
        "new log members count before the log is copied to them",
        "107: the root names a generation when a majority of its members has the log",
        MOVING,
        "        self._adopt(generation, entries)\n        self._name(generation)\n        if current is None:\n",
        "        self._name(generation)\n        self._adopt(generation, entries)\n        if current is None:\n",
        LOG,
    ),
    Mutation(
        "the log is copied to new members before the old ones take nothing more",
        "107: the log is taken when a majority of each generation has promised the new one",
        MOVING,
        "        sealed = self._seal(generation, before)\n"
        "        self._require_own(current, sealed)\n"
        "        entries = verified(root.read(0))\n",
        "        sealed = self._seal(generation, before)\n        self._require_own(current, sealed)\n",
        LOG,
    ),
    Mutation(
        "only the new members promise",
        "107: a majority of every generation that could acknowledge has promised the new one",
        MOVING,
        "        for one in () if self._accept_loss else earlier:\n",
        "        for one in ():\n",
        LOG,
    ),
    Mutation(
        "a promise of a log member is not looked at by who appends",
        "107: who appends looks for promises when he has read the copy",
        MEMBER,
        "            if promised and promised[-1] > number:\n"
        "                raise promised_to(self.uri, promised[-1])\n",
        "",
        LOG,
    ),
    Mutation(
        "a promise of a log member fences nothing",
        "107: an append that was read for before a promise conflicts with the fence",
        MEMBER,
        "                    self._logs.open(self._log_of(number)).fence()\n",
        "                    pass\n",
        LOG,
    ),
    Mutation(
        "a lost root is restored from any copy",
        "107: the longest copy of the newest generation has all that was acknowledged",
        MOVING,
        "key=lambda uri: (found[uri][0], len(found[uri][1]))",
        "key=lambda uri: (found[uri][0], -len(found[uri][1]))",
        LOG,
    ),
    Mutation(
        "a lost root is restored from the longest copy of any generation",
        "107: a copy of an earlier generation may hold what nobody acknowledged",
        MOVING,
        "key=lambda uri: (found[uri][0], len(found[uri][1]))",
        "key=lambda uri: len(found[uri][1])",
        LOG,
    ),
    Mutation(
        "a root that is behind its members is followed",
        "107: a reader that finds a member ahead of the root refuses the root",
        MAJORITY,
        "        if ahead.epoch <= tail.epoch:\n            return\n",
        "        return\n",
        LOG,
    ),
    Mutation(
        "a log member without a whole copy counts",
        "107: a copy counts from when `adopted` lies beside it",
        MEMBER,
        "        if number != self._number and not self._is_adopted(number):\n"
        '            raise NotAdopted(f"{self.uri} has no whole copy of generation {number} of the log")\n',
        "        if number != self._number and not self._is_adopted(number):\n            return\n",
        LOG,
    ),
    Mutation(
        "a change of log members takes the number of one that was left unfinished",
        "107: the number is greater than every one that was seen",
        MOVING,
        "            number = max([*seen, taken, current.number if current is not None else 0]) + 1\n",
        "            number = max([taken, current.number if current is not None else 0]) + 1\n",
        LOG,
    ),
    Mutation(
        "a promise of one change stands for another one of its number",
        "107: of one number only one document is kept by a member",
        "metastore/log/generations.py",
        "    return _read(storage, directory, generation.number) == generation\n",
        "    return True\n",
        LOG,
    ),
    Mutation(
        "a change of log members that is cancelled keeps its number",
        "123: a promise cannot be taken back, so going back is a generation of its own",
        "jobs/upkeep/log_members.py",
        "    return mover.reconfigure(current.cluster_id, current.members, place.below.open())\n",
        "    return current\n",
        LOG,
    ),
    Mutation(
        "a blank disk counts as the log member that it stands in for",
        "125: who has lost his seat has lost what he held, and does not count",
        MOVING,
        "                if doubt := self._member(uri).doubt(one):\n",
        "                if doubt := '':\n",
        LOG,
    ),
    Mutation(
        "a log member that was restored from a copy counts",
        "125: a seat whose file was made anew does not count",
        SEATS,
        "    if abs(changed - seat.changed_ms) > TOLERANCE_MS:\n",
        "    if False:\n",
        LOG,
    ),
    Mutation(
        "a log member that never had a seat is given a copy",
        "125: who is not named there is never given a copy of the generation, so he holds nothing of it",
        MEMBER,
        "        if generation.token and generation.seat_of(self.uri) is None:\n",
        "        if False:\n",
        LOG,
    ),
    Mutation(
        "a log member that was emptied takes what a handle of before brings",
        "125: the promise is looked for at each append",
        MEMBER,
        "            if number not in promised and not ahead:\n",
        "            if False:\n",
        LOG,
    ),
    Mutation(
        "a log member gives up what it keeps before it has a whole copy",
        "125: what is over goes from a member that has a whole copy of a later generation",
        MEMBER,
        "        if not self._is_adopted(number):\n            return\n",
        "",
        LOG,
    ),
    Mutation(
        "a root is restored without saying so",
        "125: until the restoration has ended nobody uses the root",
        MOVING,
        "        generations.begin_restoring(self._storage, self._register, generation)\n",
        "",
        LOG,
    ),
)
