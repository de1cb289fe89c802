"""Mutations of the commit protocol: claims and offers, outcomes, shared appends, the line in front of the log."""

from __future__ import annotations

from tests.campaign_mutations.mutation import BOTH, LOG, LOG_TABLES, Mutation, also

COMMITTER = "metastore/committing/committer.py"
BATCHES = "metastore/committing/batches.py"
OUTCOMES = "metastore/committing/outcomes.py"
SUBMISSIONS = "metastore/committing/submissions.py"
OFFERS = "metastore/committing/offers.py"
PROPOSALS = "metastore/coordination/proposals.py"
QUEUE = "metastore/coordination/commit_queue.py"
CONTENTION = "metastore/coordination/contention.py"

MUTATIONS = (
    also("claims before the log is read", "018: an append is against what was read before the claim", LOG),
    also("claimed proposals tried again after a conflict", "018: what is claimed is tried once", LOG),
    also("a failure is told of what somebody may still append", "outcomes: the log is fenced before a failure", LOG),
    also("a rejection is told while its grounds are not committed", "outcomes: a rejection rests on commits", LOG),
    also("a request id is done already, whatever it is for", "an id with another change is rejected", LOG),
    Mutation(
        "a failure is told without another look behind the fence",
        "outcomes: after the fence the log tells",
        OUTCOMES,
        "                    self._follower.log.fence()\n                    self._follower.catch_up()\n",
        "                    self._follower.log.fence()\n",
        LOG,
    ),
    Mutation(
        "a failure is told of what is still offered",
        "outcomes: of an offer whose withdrawal is not sure only a success can be known",
        OUTCOMES,
        "    if submission.offered:\n",
        "    if False:\n",
        LOG,
    ),
    Mutation(
        "a rejection is told of what is still offered",
        "outcomes: who leads tells no failure of what somebody may still take",
        BATCHES,
        "            if not (submission.offered and isinstance(result, Exception)):\n",
        "            if True:\n",
        LOG,
    ),
    Mutation(
        "a claim without an answer is proposed",
        "018: a delete whose answer was lost decides for nobody",
        PROPOSALS,
        "            except (NoNodeError, CoordinationUnavailable):\n                continue\n",
        "            except NoNodeError:\n                continue\n            except CoordinationUnavailable:\n"
        "                pass\n",
        LOG,
    ),
    Mutation(
        "an offer that has gone is proposed",
        "018: of all who delete an offer one has it",
        PROPOSALS,
        "            except (NoNodeError, CoordinationUnavailable):\n                continue\n",
        "            except NoNodeError:\n                pass\n            except CoordinationUnavailable:\n"
        "                continue\n",
        LOG,
    ),
    Mutation(
        "a line that does not answer has nothing of an earlier try",
        "018: where ZooKeeper does not tell what is in line, a failure of a request that comes again is not known",
        OFFERS,
        "        return EarlierTries(frozenset(requests), are_in_line=not seen)\n",
        "        return EarlierTries(frozenset(requests))\n",
        LOG,
    ),
    Mutation(
        "an offer that has gone was taken by nobody",
        "018: gone and claimed look the same to the owner",
        PROPOSALS,
        "        except NoNodeError:\n            return False\n",
        "        except NoNodeError:\n            return True\n",
        LOG,
    ),
    Mutation(
        "a withdrawal without an answer is taken for one",
        "018: an offer whose withdrawal is not sure stays open",
        OFFERS,
        "            return SubmissionStep.OFFER\n",
        "            return SubmissionStep.KEEP\n",
        LOG,
    ),
    Mutation(
        "an offer is forgotten when the log moves",
        "standing: moving the log ends what was taken, not what can still be taken",
        SUBMISSIONS,
        "        SubmissionStep.MOVE_LOG: Standing.OFFERED,\n    },\n    Standing.TAKEN: {\n",
        "        SubmissionStep.MOVE_LOG: Standing.OWN,\n    },\n    Standing.TAKEN: {\n",
        LOG,
    ),
    Mutation(
        "offers of an earlier try are not looked for",
        "018: before a request is told a failure, an offer that an earlier try has left in line is dropped",
        COMMITTER,
        "        if not looked and prepared.fails_an_earlier_try():\n",
        "        if False:\n",
        LOG,
    ),
    Mutation(
        "a rejection is told of what somebody has taken from an earlier try",
        "018: before a request is told a failure, the log is fenced against who has claimed an earlier try of it",
        SUBMISSIONS,
        "        return self.taken or (self.may_have_been_offered and not self._log_has_moved)\n",
        "        return self.taken\n",
        LOG,
    ),
    Mutation(
        "one request comes twice into one append",
        "shared appends: a request id is looked up in the batch too",
        BATCHES,
        "            epoch = in_batch.get(submission.request_id) or follower.request_epoch(submission.request_id)\n",
        "            epoch = follower.request_epoch(submission.request_id)\n",
        LOG,
    ),
    Mutation(
        "events of one append are checked against what was read",
        "shared appends: each event is checked against the metadata after the one before it",
        BATCHES,
        "                self.metadata.check(event)\n",
        "                follower.metadata.check(event)\n",
        BOTH,
    ),
    Mutation(
        "a success is told before the append",
        "outcomes: nobody hears of an entry before it is appended",
        COMMITTER,
        "        if prepared.entries:\n            try:\n                self._follower.log.append(prepared.entries)\n",
        "        if prepared.entries:\n            prepared.settle()\n            try:\n"
        "                self._follower.log.append(prepared.entries)\n",
        LOG,
    ),
    Mutation(
        "the head is heard before the line",
        "017: who had to wait in line hears what was announced when the lock is had: the log may go back meanwhile",
        QUEUE,
        "        if acquired and (self._lock.contenders > 1 or any(map(_has_failed, self._asked))):\n",
        "        if False:\n",
        LOG,
    ),
    Mutation(
        "the head is told after the outcome",
        "017: what was told is announced before, or a log that comes back without it is not noticed",
        OUTCOMES,
        "            self._publish(self._follower.position)\n",
        "",
        LOG,
    ),
    Mutation(
        "what is known already is told without a word to ZooKeeper",
        "017: who finds his request in the log announces it before he hears of it",
        OUTCOMES,
        "        submission.outcome = committed_at(submission, entry)\n"
        "        # Who has appended it may have died before he announced it, and nobody else may have looked since.\n"
        "        self._publish(self._follower.position)\n",
        "        submission.outcome = committed_at(submission, entry)\n",
        LOG_TABLES,
    ),
    Mutation(
        "the head is published before the append",
        "the head is a hint that lags behind the log and is never ahead of it",
        COMMITTER,
        "        if prepared.entries:\n            try:\n                self._follower.log.append(prepared.entries)\n",
        "        if prepared.entries:\n            last = prepared.entries[-1]\n"
        "            self._queue.publish(Position(last.epoch, last.state_id, last.hash, last.incarnation))\n"
        "            try:\n                self._follower.log.append(prepared.entries)\n",
        LOG,
    ),
    Mutation(
        "what has no outcome is not put back in line",
        "a submission whose time is not over goes on waiting: requests without an end",
        COMMITTER,
        "                self._waiting.extendleft(s for s in reversed(batch) if s.outcome is None)\n",
        "",
        LOG,
    ),
    Mutation(
        "a request that comes again is told as new",
        "a call that comes after its request was told as committed is told `already`",
        COMMITTER,
        "        return msgspec.structs.replace(submission.outcome, already=True) if told_before else ",
        "        return ",
        LOG,
    ),
    Mutation(
        "what was found in the log is told as new",
        "`already` is what an earlier try has committed",
        OUTCOMES,
        "    was_there = not (submission.offered or submission.taken)\n",
        "    was_there = False\n",
        LOG,
    ),
    Mutation(
        "a change lands on a later epoch than it expects",
        "expect_epoch: rejected unless the cluster is at exactly this epoch",
        SUBMISSIONS,
        "    if expected is not None and metadata.epoch != expected:\n",
        "    if expected is not None and metadata.epoch < expected:\n",
        LOG,
    ),
    Mutation(
        "who got no answer stays in line",
        "liveness: a contender that a request without an answer may have left behind is removed in the background",
        CONTENTION,
        "        if not requests.all_answered:\n            coordination.remove_later(directory, lock.prefix)\n",
        "",
        LOG,
    ),
    Mutation(
        "a lock that is given back without an answer is kept",
        "liveness: giving back is repeated until ZooKeeper has answered",
        CONTENTION,
        "                self._coordination.remove_later(directory, prefix)\n",
        "                pass\n",
        LOG,
    ),
)
