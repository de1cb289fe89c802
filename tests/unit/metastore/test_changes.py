"""A change as one object: planned once, prepared before its commit, and shown without either."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import pytest
from epochlake.metastore.committing.changes import Call, Change, FixedChange, Preparation
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.errors import CommitTimeout, Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import PauseChanges, SwitchBalancing, TakeSnapshot
from epochlake.metastore.metastore import Metastore, author, init_cluster


class Doing(Preparation[SwitchBalancing]):
    """Writes down what is done for a commit; `meanwhile` is done once, after something was prepared."""

    def __init__(self, meanwhile: Callable[[], object] | None = None) -> None:
        self.done: list[str] = []
        self.meanwhile = meanwhile

    def __str__(self) -> str:
        """In words: each is the same argument."""
        return "doing"

    def prepare(self, event: SwitchBalancing, metadata: ClusterMetadata) -> None:
        self.done.append(f"prepared on {metadata.epoch}")
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()

    def still_prepared(self, event: SwitchBalancing, then: ClusterMetadata, now: ClusterMetadata) -> bool:
        return then.epoch == now.epoch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done.append("ended" if error is None else f"ended by {type(error).__name__}")


class Switching(Change[SwitchBalancing], frozen=True):
    verb: ClassVar[str] = "switch balancing"
    doing: Doing

    def plan(self, metadata: ClusterMetadata, call: Call) -> SwitchBalancing:
        return SwitchBalancing(False, f"{call.request_id}, {call.reason}, {call.preview}")

    def preparation(self, metastore: Metastore) -> Doing:
        return self.doing


class Pausing(FixedChange[PauseChanges], frozen=True):
    verb: ClassVar[str] = "pause"
    level: int = 1

    def event(self, call: Call) -> PauseChanges:
        return PauseChanges(call.reason)


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[Metastore]:
    configuration = Configuration(root=str(tmp_path))
    init_cluster(configuration)
    with Metastore(configuration, queue=LocalQueue()) as opened:
        yield opened


def test_a_change_is_planned_for_its_call_prepared_and_committed(metastore: Metastore) -> None:
    doing = Doing()
    assert metastore.commit(Switching(doing), request_id="mine", reason="load").epoch == 2
    assert metastore.metadata.switches.balancing_reason == "mine, load, False"
    assert doing.done == ["prepared on 1", "ended"]


def test_a_preview_shows_the_change_and_prepares_and_commits_nothing(metastore: Metastore) -> None:
    doing = Doing()
    preview = metastore.preview(Switching(doing), request_id="mine", reason="load")
    assert (preview.metadata.epoch, preview.after.epoch) == (1, 2)
    assert preview.event == SwitchBalancing(False, "mine, load, True")
    assert not preview.after.switches.balancing
    assert (metastore.catch_up().epoch, doing.done) == (1, [])


def test_a_preview_is_rejected_as_the_commit_would_be(metastore: Metastore) -> None:
    metastore.commit(Pausing(), reason="an audit")
    with pytest.raises(Rejected, match="an audit"):
        metastore.preview(Switching(Doing()))
    with pytest.raises(Rejected, match="epoch-moved"):
        metastore.preview(Switching(Doing()), expect_epoch=1)


def test_nothing_is_prepared_for_what_is_rejected(metastore: Metastore) -> None:
    doing = Doing()
    with pytest.raises(Rejected, match="epoch-moved"):
        metastore.commit(Switching(doing), expect_epoch=7)
    metastore.commit(Pausing())
    with pytest.raises(Rejected, match="changes-paused"):
        metastore.commit(Switching(doing))
    assert doing.done == ["ended by Rejected"] * 2


def test_what_is_not_enough_any_more_is_planned_and_prepared_again(metastore: Metastore) -> None:
    doing = Doing(meanwhile=lambda: metastore.commit(TakeSnapshot()))
    assert metastore.commit(Switching(doing)).epoch == 3
    assert doing.done == ["prepared on 1", "prepared on 2", "ended"]


def test_preparing_takes_its_time_from_the_commit(metastore: Metastore) -> None:
    doing = Doing(meanwhile=lambda: (metastore.commit(TakeSnapshot()), time.sleep(0.3)))
    with pytest.raises(CommitTimeout):
        metastore.commit(Switching(doing), timeout=0.2)
    assert doing.done == ["prepared on 1", "ended by CommitTimeout"]


def test_nothing_is_prepared_for_a_request_that_is_done_already(metastore: Metastore) -> None:
    metastore.commit(Switching(Doing()), request_id="mine")
    doing = Doing()
    with pytest.raises(Rejected, match="request-id-used"):
        metastore.commit(Pausing(), request_id="mine")
    assert metastore.commit(Switching(doing), request_id="mine").already
    assert doing.done == ["ended"]


def test_an_event_that_depends_on_no_metadata_is_given_to_the_committer_as_it_is(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def commit(committer: Committer, what: object, **options: Any) -> None:
        given.append((what, options["asked"], options["named"]))

    monkeypatch.setattr(Committer, "commit", commit)
    metastore.commit(Pausing(), reason="an audit")
    metastore.commit(Pausing(level=2), reason="an audit", request_id="mine")
    event = PauseChanges("an audit")
    assert given == [(event, "pause", False), (event, 'pause {"level":2}', True)]


def test_no_two_who_commit_from_one_process_are_the_same_author() -> None:
    """By the author of an entry a call is told whether it was its own: a second cluster of this process is another."""
    names = [author() for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name.partition("@")[0] for name in names)
