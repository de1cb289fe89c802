"""Mutations of log members: what a majority has, what they have promised, and roots that are restored from them."""

from __future__ import annotations

from tests.campaign_mutations.mutation import LOG, Mutation

MAJORITY = "metastore/log/majority_log.py"
MEMBER = "metastore/log/log_member.py"
MOVING = "metastore/log/moving_members.py"

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
        "        self._adopt(generation, entries)\n        self._name(generation)\n        return generation\n",
        "        self._name(generation)\n        self._adopt(generation, entries)\n        return generation\n",
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
        "        for one in [*self._that_count(relevant, sealed), generation]:\n",
        "        for one in [generation]:\n",
        LOG,
    ),
    Mutation(
        "a promise of a log member is not looked at by who appends",
        "107: who appends looks for promises when he has read the copy",
        MEMBER,
        "            if promised > number:\n                raise promised_to(self.uri, promised)\n            here =",
        "            here =",
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
        "        source = max(found, key=lambda uri: (found[uri][0], len(found[uri][1])))\n",
        "        source = max(found, key=lambda uri: (found[uri][0], -len(found[uri][1])))\n",
        LOG,
    ),
    Mutation(
        "a lost root is restored from the longest copy of any generation",
        "107: a copy of an earlier generation may hold what nobody acknowledged",
        MOVING,
        "        source = max(found, key=lambda uri: (found[uri][0], len(found[uri][1])))\n",
        "        source = max(found, key=lambda uri: len(found[uri][1]))\n",
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
        "a change of log members that is cancelled keeps its number",
        "123: a promise cannot be taken back, so going back is a generation of its own",
        "jobs/upkeep/log_members.py",
        "    return mover.reconfigure(current.cluster_id, current.members, place.below.open())\n",
        "    return current\n",
        LOG,
    ),
)
