"""Histories with real parts: processes that are killed, paused, cut off from a real ensemble, and find no room on disk.

The checkers are those of worlds (jobs/testing). `make campaign-real` plays as many histories as wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from epochlake.jobs.testing import log_checkers, row_checkers
from epochlake.jobs.testing.log_checkers import History
from epochlake.jobs.testing.row_checkers import RowHistory
from epochlake.jobs.testing.scenario import Operation, Part, Scenario, Settings
from epochlake.metastore.committing.submissions import Committed
from epochlake.metastore.errors import CommitTimeout

from tests.support.proxies import Proxies
from tests.support.real_histories import AT_REST, files_in_memory, keep, play, play_log, play_rows, real_parts, summary
from tests.support.slices import some
from tests.support.zookeeper import Ensemble

Parts = tuple[Ensemble, Proxies]


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    with files_in_memory() as memory, real_parts(memory) as found:
        yield found


@pytest.fixture
def memory() -> Iterator[Path]:
    with files_in_memory() as found:
        yield found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["log", "rows"])
def test_what_real_processes_are_told_holds_whatever_strikes_them(
    kind: str, parts: Parts, memory: Path, tmp_path: Path, seed: int
) -> None:
    for number in range(some(40, 1)):
        folder = memory / str(number)
        played = play(kind, seed + number, *parts, folder)
        print(summary(played))
        assert not played.violations, f"kept in {keep(played, folder, tmp_path)}"


def calm(kind: str, *parts: Part) -> Scenario:
    """A scenario in which nothing goes wrong."""
    return Scenario(kind, 0, 0.1, Settings(delta=True, tablets=1), parts)


def without_the_last_entries(history: History) -> History:
    return history._replace(entries=history.entries[:-2])


def with_another_epoch(history: History) -> History:
    outcome = history.calls[0].outcome
    assert isinstance(outcome, Committed)
    other = history.calls[0]._replace(outcome=Committed(outcome.epoch + 1, outcome.request_id))
    return history._replace(calls=[other, *history.calls[1:]])


def with_a_timeout_in_place_of_a_success(history: History) -> History:
    return history._replace(calls=[history.calls[0]._replace(outcome=CommitTimeout("late")), *history.calls[1:]])


def with_another_state(history: History) -> History:
    return history._replace(seen=[*history.seen, history.seen[0]._replace(digest="another")])


def with_the_first_one_last(history: History) -> History:
    first, *others = history.calls
    return history._replace(calls=[first._replace(began=first.ended + 1000, ended=first.ended + 1001), *others])


def test_the_checker_notices_commits_that_were_told_otherwise(parts: Parts, memory: Path) -> None:
    thread = tuple(Operation("commit", name=name, number=5, seconds=60.0) for name in ("a", "b"))
    history = play_log(calm("log", Part("p0", "commits", (thread,))), *parts, memory / "log")
    assert not log_checkers.violations(history)
    falsified: list[Callable[[History], History]] = [
        without_the_last_entries,
        with_another_epoch,
        with_a_timeout_in_place_of_a_success,
        with_another_state,
        with_the_first_one_last,
    ]
    assert [change.__name__ for change in falsified if not log_checkers.violations(change(history))] == []


def test_the_checker_notices_rows_that_were_not_shown(parts: Parts, memory: Path) -> None:
    thread = (Operation("write", name="w", keys=(1, 2), level="QUORUM"), Operation("read", level="QUORUM"))
    history = play_rows(calm("rows", Part("writer", "pipeline", (thread,))), *parts, memory / "rows")
    assert not row_checkers.violations(history)
    # Key 0 is written last of all, and what a level shows has to have it.
    last = [
        place
        for place, access in enumerate(history.accesses)
        if access.who == AT_REST and access.level in ("QUORUM", "ALL")
    ]
    assert len(last) == 2
    assert [place for place in last if not row_checkers.violations(without_row(history, place, key=0))] == []


def without_row(history: RowHistory, place: int, key: int) -> RowHistory:
    """The history in which a read was not shown a row that it was shown."""
    access = history.accesses[place]
    rows = {other: notes for other, notes in access.rows.items() if other != key}
    notes = {other: note for other, note in access.notes.items() if other != key}
    changed = access._replace(rows=rows, notes=notes)
    return history._replace(accesses=[*history.accesses[:place], changed, *history.accesses[place + 1 :]])
