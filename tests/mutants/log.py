"""What commits of the log, and following it, rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COMMITTER = ("tests/unit/metastore/test_committer_truth.py", "tests/unit/metastore/test_committer_interleavings.py")

MUTANTS = (
    Mutant(
        "a failure is told though an earlier try may be in a line that does not answer",
        "metastore/committing/outcomes.py",
        "    if in_line and isinstance(failure, CommitTimeout | AppendFailed):\n",
        "    if False:\n",
        COMMITTER,
    ),
    Mutant(
        "log members take what the root does not have yet",
        "metastore/log/asked_members.py",
        "            while self._begun is None:\n                self._changed.wait()\n",
        "            if self._begun is None:\n                return True\n",
        ("tests/unit/metastore/test_log_members.py",),
    ),
    Mutant(
        "an append that was prepared for other entries is made",
        "metastore/log/delta.py",
        "        if self._prepared is not None and self._prepared.entries != tuple(entries):\n",
        "        if False:\n",
        ("tests/unit/metastore/test_delta_log.py",),
    ),
    Mutant(
        "claims before the log is read",
        "metastore/committing/committer.py",
        "        self._follower.catch_up()\n        if not self._has_heard:\n",
        "        early = self._offers.claim()\n        self._offers.claim = lambda: early\n"
        "        self._follower.catch_up()\n        if not self._has_heard:\n",
        COMMITTER,
    ),
    Mutant(
        "claimed proposals tried again after a conflict",
        "metastore/committing/committer.py",
        "        claims = self._offers.claim() if looked else []\n",
        "        self._held = [*getattr(self, '_held', []), *(self._offers.claim() if looked else [])]\n"
        "        claims = self._held\n",
        ("tests/unit/metastore/test_committer_offers.py",),
    ),
    Mutant(
        "every storage error is a failed append",
        "metastore/log/delta.py",
        "            if places.local_path(self.uri) is None or self._version_exists(read_at + 1):\n",
        "            if False:\n",
        ("tests/unit/metastore/test_delta_log.py",),
    ),
    Mutant(
        "a failure is told of what somebody may still append",
        "metastore/committing/outcomes.py",
        "                    self._follower.log.fence()\n                    self._follower.catch_up()\n",
        "                    self._follower.catch_up()\n",
        COMMITTER,
    ),
    Mutant(
        "a rejection is told while its grounds are not committed",
        "metastore/committing/committer.py",
        "        elif prepared.fails_what_others_may_append(batch):\n",
        "        elif False:\n",
        COMMITTER,
    ),
    Mutant(
        "a log behind what was announced is appended to",
        "metastore/committing/committer.py",
        "        self._follower.require_reached(self._announced)\n",
        "",
        ("tests/unit/metastore/test_log_went_back.py",),
    ),
    Mutant(
        "a log of which only the number is known again is followed",
        "metastore/following/follower.py",
        "            if not found or position_of(found[0]) != known:\n",
        "            if not found or found[0].epoch != known.epoch:\n",
        ("tests/unit/metastore/test_follower.py", "tests/unit/metastore/test_log_went_back.py"),
    ),
    Mutant(
        "a snapshot is believed on its own word",
        "metastore/following/snapshots.py",
        "    return isinstance(event, TakeSnapshot) and event.proves(metadata)\n",
        "    return isinstance(event, TakeSnapshot)\n",
        ("tests/unit/metastore/test_snapshots.py",),
    ),
    Mutant(
        "a request id is done already, whatever it is for",
        "metastore/committing/outcomes.py",
        "    if submission.named and submission.is_for_another_change(entry):\n",
        "    if False:\n",
        COMMITTER,
    ),
    Mutant(
        "a commit of the log is not synced",
        "metastore/delta_commits.py",
        "            sync([temporary, *named], [os.path.dirname(one) for one in named])\n",
        "",
        ("tests/unit/jobs/test_power.py",),
    ),
    Mutant(
        "the name of a commit is not synced",
        "metastore/delta_commits.py",
        "    sync(directories=[directory])\n    return True\n",
        "    return True\n",
        ("tests/unit/jobs/test_power.py",),
    ),
)
