"""A job that is no pipeline announces itself like one, so that vacuum leaves alone what it reads and will commit."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochlake.metastore.coordination.leases import Lease, announce
from epochlake.metastore.errors import CoordinationUnavailable

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

logger = logging.getLogger(__name__)


@contextmanager
def announced(cluster: Cluster, name: str, *tables: str) -> Iterator[None]:
    """Hold a lease called `name` while the block runs. Without ZooKeeper it runs all the same, with a warning."""
    lease = Lease(
        name=name,
        pipeline_id=str(uuid.uuid4()),
        epoch=cluster.metadata.epoch,
        tables=tables,
        started_at=time.time_ns() // 1_000_000,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    try:
        announcement = announce(cluster.coordination(), lease)
    except CoordinationUnavailable as error:
        logger.warning("%s runs unannounced, vacuum does not know of it: %s", name, error)
        yield
        return
    try:
        yield
    finally:
        announcement.release()
