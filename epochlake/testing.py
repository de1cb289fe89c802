"""A cluster for tests of your own pipelines: in a directory, without ZooKeeper, with faults and delays by hand.

The names in `__all__` are public, as those of `epochlake` are. docs/testing.md shows how they are used.

    from epochlake.testing import local_cluster

    with local_cluster(tmp_path) as lake:
        …
"""

from epochlake.jobs.testing.local.cluster import LocalCluster, local_cluster
from epochlake.jobs.testing.local.holding import HeldCommits

__all__ = ["HeldCommits", "LocalCluster", "local_cluster"]
