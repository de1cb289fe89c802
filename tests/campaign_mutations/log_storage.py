"""Mutations of the log's storage: appends, torn commits, compaction, checkpoints, snapshots, a log that went back."""

from __future__ import annotations

from tests.campaign_mutations.mutation import LOG_TABLES, TABLES, Mutation, also

COMMITS = "metastore/delta_commits.py"
DELTA = "metastore/log/delta.py"
FOLLOWER = "metastore/following/follower.py"

MUTATIONS = (
    also("every storage error is a failed append", "004: an append without an answer may have landed", LOG_TABLES),
    also(
        "a log behind what was announced is appended to", "017: the log holds what ZooKeeper knows, by hash", LOG_TABLES
    ),
    also(
        "a log of which only the number is known again is followed",
        "017: known entries are compared by hash",
        LOG_TABLES,
    ),
    also("a snapshot is believed on its own word", "017: the log proves snapshots by their digests", LOG_TABLES),
    also("a commit of the log is not synced", "020: bytes are on the disk before the commit is visible", TABLES),
    also("the name of a commit is not synced", "020: the name is on the disk before anybody is told", TABLES),
    Mutation(
        "two commits get the same version",
        "020: of two that want one version one gets it, by a link",
        COMMITS,
        "        try:\n            disk.link(temporary, path)\n        except FileExistsError:\n",
        "        try:\n            disk.rename(temporary, path)\n        except FileExistsError:\n",
        TABLES,
    ),
    Mutation(
        "a hole between commits is filled",
        "020: a commit that is missing between others is neither read over nor filled",
        COMMITS,
        "        if _is_hole(disk, directory, commit.version):\n",
        "        if False:\n",
        TABLES,
    ),
    Mutation(
        "a torn commit is read as a shorter one",
        "020: a commit that is empty or ends early is an error that names it",
        COMMITS,
        "    how = _damage(commit, data)\n    if how is not None:\n",
        "    how = _damage(commit, data)\n    if how == ACCEPTED:\n",
        TABLES,
    ),
    Mutation(
        "a flipped bit in a commit is not noticed",
        "020: a commit file has a digest of its lines",
        COMMITS,
        "        if information.get(DIGEST, _digest(rest)) != _digest(rest):\n",
        "        if False:\n",
        TABLES,
    ),
    Mutation(
        "what others have committed is not synced before it is built upon",
        "020: whoever looks at a table syncs its newest commit first",
        COMMITS,
        "    storage.syncing.sync([path for path in paths if disk.status(path) is not None], [directory])\n",
        "",
        TABLES,
    ),
    Mutation(
        "an append counts where clean-up has deleted its version",
        "004: an append counts only if the log has not moved on past it",
        DELTA,
        "        return newest > version or not self._version_exists(version)\n",
        "        return False\n",
        LOG_TABLES,
    ),
    Mutation(
        "an append is made against whatever there is",
        "the append is a compare-and-append against exactly what was read",
        DELTA,
        "                appended = append_files(self._storage, table, read_at + 1, [stored], Mark(APP_ID, last))\n",
        "                newest = self._open().version() + 1\n"
        "                appended = append_files(self._storage, table, newest, [stored], Mark(APP_ID, last))\n",
        LOG_TABLES,
    ),
    Mutation(
        "a fence of the log does nothing",
        "a fence makes every append against an earlier read conflict",
        DELTA,
        "        if places.local_path(self.uri) is not None:\n            self._fence_by_put()\n            return\n",
        "        if places.local_path(self.uri) is not None:\n            return\n",
        LOG_TABLES,
    ),
    Mutation(
        "a handle that slept is moved on",
        "004: a handle that was not refreshed for long is opened anew, or clean-up hides what came",
        DELTA,
        "REOPEN_SECONDS = LOG_RETENTION_SECONDS / 2\n",
        "REOPEN_SECONDS = 1e9\n",
        LOG_TABLES,
    ),
    Mutation(
        "the log is cleaned up before its checkpoint is on the disk",
        "020: checkpoints are synced before the commits that they stand for are deleted",
        DELTA,
        "            delta_checkpoints.sync_checkpoints(self._storage, self.uri)\n",
        "",
        LOG_TABLES,
    ),
    Mutation(
        "what a lost append has stored stays",
        "020: who loses an append deletes its data file, or `log heal` takes it for a torn commit's",
        DELTA,
        "        if stored is not None:\n",
        "        if False:\n",
        LOG_TABLES,
    ),
    Mutation(
        "two compactions of the same files both succeed",
        "016: files are replaced against exactly the version that was looked at",
        "metastore/rewriting.py",
        "        if not put_commit(storage, _commit_of(table, version), operation, lines, files):\n"
        "            return False\n",
        "        while not put_commit(storage, _commit_of(table, version), operation, lines, files):\n"
        "            if not removes:\n                return False\n            version += 1\n",
        LOG_TABLES,
    ),
    Mutation(
        "requests of before a snapshot are forgotten",
        "a request id counts in the whole history, also for who began at a snapshot",
        FOLLOWER,
        "        self._requests_known_from = self._position.epoch\n",
        "        self._requests_known_from = 0\n",
        LOG_TABLES,
    ),
    Mutation(
        "a request that is known here is committed, whatever the log says",
        "017: a request that is known here is not called committed by a log that has lost it",
        "metastore/committing/outcomes.py",
        "                self._follower.catch_up()\n        except LOG_CONTRADICTS as error:\n"
        "            submission.outcome = error\n",
        "                pass\n        except LOG_CONTRADICTS as error:\n            submission.outcome = error\n",
        LOG_TABLES,
    ),
    Mutation(
        "a copy of the root becomes a second cluster",
        "017: every commit compares its root with the registered one",
        "metastore/coordination/commit_queue.py",
        '            self._require_root(coordination, None if root is None else root.data.decode(errors="replace"))\n',
        "",
        LOG_TABLES,
    ),
)
