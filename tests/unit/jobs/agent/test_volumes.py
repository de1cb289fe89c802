"""Volumes are watched by looks that may hang, and nobody waits for them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from epochlake.jobs.agent.volumes import Space, VolumeHealth, VolumeWatch, local_path

from tests.support.waiting import eventually


def watched(watch: VolumeWatch) -> VolumeWatch:
    assert watch.probe()
    eventually(lambda: watch.seen().health is not VolumeHealth.UNKNOWN)
    return watch


def test_a_volume_tells_its_space_and_how_long_a_look_takes(tmp_path: Path) -> None:
    seen = watched(VolumeWatch("d1", str(tmp_path), deadline=5.0)).seen()
    assert seen.health is VolumeHealth.OK
    assert seen.free is not None
    assert seen.capacity is not None
    assert 0 < seen.free <= seen.capacity
    assert seen.seconds is not None


def test_a_volume_that_is_gone_is_failing_with_the_error_of_the_system(tmp_path: Path) -> None:
    seen = watched(VolumeWatch("d1", f"file://{tmp_path}/gone", deadline=5.0)).seen()
    assert seen.health is VolumeHealth.FAILING
    assert "ENOENT" in (seen.error or "")


def test_a_file_system_that_became_read_only_is_told() -> None:
    watch = watched(VolumeWatch("d1", "/x", deadline=5.0, looking=lambda _: Space(1, 2, True)))
    assert watch.seen().health is VolumeHealth.READ_ONLY


def test_a_hanging_mount_is_reported_hangs_nobody_and_gets_no_second_look() -> None:
    back, looks = threading.Event(), []

    def hangs(path: str) -> Space:
        looks.append(path)
        back.wait()
        return Space(1, 2, False)

    watch = VolumeWatch("d1", "/x", deadline=0.05, looking=hangs)
    began = time.monotonic()
    assert watch.probe()
    eventually(lambda: watch.seen().health is VolumeHealth.HANGING)
    assert not any(watch.probe() for _ in range(100))
    assert time.monotonic() - began < 5
    assert looks == ["/x"]
    back.set()
    eventually(lambda: watch.seen().health is VolumeHealth.OK)
    assert watch.probe()


@pytest.mark.parametrize(
    ("uri", "path"), [("/a b", "/a b"), ("file:///a%20b", "/a b"), ("rel/x", "rel/x"), ("s3://b/x", None)]
)
def test_only_volumes_of_this_machine_are_watched(uri: str, path: str | None) -> None:
    assert local_path(uri) == path
    watch = VolumeWatch("d1", uri, deadline=1.0)
    if path is None:
        assert not watch.probe()
        assert watch.seen().health is VolumeHealth.NOT_WATCHED
