"""A process of committers for `commits.throughput`: `python -m benchmarks.committer ROOT THREADS COMMITS`.

It opens the cluster, says `ready`, waits for a line, commits from all threads, says `done`, and waits for the end of
its input before it closes, so that closing is not measured.
"""

from __future__ import annotations

import sys
import threading
import uuid

from epochlake.jobs.cluster import Cluster, open_cluster
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.metadata.events import CreateKeyspace, DropKeyspace
from epochlake.metastore.metadata.model import Keyspace, PlacementKind


def main(root: str, threads: int, commits: int) -> int:
    """Exit code 1 when any commit has failed."""
    failures: list[BaseException] = []
    with open_cluster(Configuration(root=root)) as cluster:
        cluster.coordination()
        workers = [
            threading.Thread(target=_commit, args=(cluster, f"k{uuid.uuid4().hex}", commits, failures))
            for _ in range(threads)
        ]
        print("ready", flush=True)
        sys.stdin.readline()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print("done", flush=True)
        sys.stdin.read()
    for failure in failures:
        print(f"{type(failure).__name__}: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _commit(cluster: Cluster, name: str, commits: int, failures: list[BaseException]) -> None:
    """Create and drop a keyspace of this thread's own: valid whatever the others do, and small."""
    keyspace = Keyspace(name, PlacementKind.TABLETS, "NetworkTopologyStrategy", {"dc1": 1})
    try:
        for number in range(commits):
            cluster.commit(DropKeyspace(name) if number % 2 else CreateKeyspace(keyspace))
    except Exception as error:
        failures.append(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
