"""A follower that is kept up to date in the background, by the watch on the head or without it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.metastore import configuration
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.watcher import Watcher
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.metadata.events import SwitchBalancing
from epochlake.metastore.metastore import init_cluster

from tests.support.storages import STORAGE

pytestmark = pytest.mark.timing


@pytest.fixture
def settings(tmp_path: Path) -> Configuration:
    made = configuration.load(
        None, {"EPOCHLAKE__ROOT": str(tmp_path / "root"), "EPOCHLAKE__LOG__POLL_SECONDS": "60"}, tmp_path
    )
    init_cluster(made)
    return made


def test_news_of_another_process_arrive_by_the_watch_long_before_the_next_look_at_the_log(
    settings: Configuration,
) -> None:
    with Cluster(settings) as onlooker, Cluster(settings) as committer:
        known = onlooker.metadata.epoch
        assert not onlooker.wait_for_news(known, 0.1)
        epoch = committer.commit(SwitchBalancing(on=False)).epoch
        started = time.monotonic()
        assert onlooker.wait_for_news(known, 20)
        assert time.monotonic() - started < 15
        assert onlooker.metadata.epoch == epoch


def test_without_a_watch_the_log_is_looked_at_from_time_to_time(settings: Configuration) -> None:
    follower = Follower(DeltaLog(STORAGE, f"{settings.root}/log"))
    watcher = Watcher(follower, None, poll_seconds=0.1)
    try:
        assert watcher.wait(0, 20)
        with Cluster(settings) as committer:
            epoch = committer.commit(SwitchBalancing(on=False)).epoch
        assert watcher.wait(epoch - 1, 20)
    finally:
        watcher.stop()
