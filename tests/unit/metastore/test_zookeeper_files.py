"""The values of the embedded server are those of the example; what keeps it from starting is named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from epochlake.metastore.coordination.embedded import zookeeper as embedded
from epochlake.metastore.coordination.embedded.files import files_of
from epochlake.metastore.coordination.embedded.room import full_disk
from epochlake.metastore.coordination.embedded.server import configuration_of
from epochlake.metastore.coordination.embedded.zookeeper import EmbeddedZooKeeper
from epochlake.metastore.errors import CoordinationUnavailable

from tests.support.failures import mounted

EXAMPLE = Path(__file__).parents[3] / "conf" / "zookeeper.cfg"
OWN_PLACE = {"dataDir", "clientPort"}


def settings_in(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {key: value for key, _, value in (line.partition("=") for line in lines) if key not in OWN_PLACE}


def test_the_example_has_the_values_that_the_embedded_server_runs_with() -> None:
    embedded = configuration_of(Path("/data"), 2181)
    assert settings_in(EXAMPLE.read_text(encoding="utf-8")) == settings_in(embedded)


def filled(root: Path) -> None:
    with suppress(OSError), open(root / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def without_supervisor(*_: object) -> None:
    """A supervisor that ends at once, and cannot write down why."""


def before_the_first_start(root: Path) -> None:
    filled(root)


def after_an_earlier_start(root: Path) -> None:
    files = files_of(root)
    files.directory.mkdir()
    for lock in (files.users, files.starting, files.supervisor):
        lock.touch()
    files.failure.touch()
    filled(root)


@pytest.mark.parametrize("begin", [before_the_first_start, after_an_earlier_start])
def test_a_full_disk_is_named_where_the_server_cannot_be_started_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(embedded, "_start_supervisor", without_supervisor)
    with mounted(tmp_path / "root", "4m") as root:
        begin(root)
        with pytest.raises(CoordinationUnavailable, match="is full") as caught:
            EmbeddedZooKeeper(root).start()
        (root / "filler").unlink()
        assert full_disk(root) is None
        assert not list(root.glob("**/.room*"))
    assert str(caught.value)[-1] not in ". ", "others put it into a sentence"


def test_a_supervisor_that_left_no_reason_is_one_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_start_supervisor", without_supervisor)
    files = files_of(tmp_path)
    files.directory.mkdir()
    files.failure.touch()
    with pytest.raises(CoordinationUnavailable, match=r"its supervisor ended\. Its log is"):
        EmbeddedZooKeeper(tmp_path).start()
