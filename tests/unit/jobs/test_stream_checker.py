"""The checker of streams of changes on histories that were made by hand: what it has to say, and what it has not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from epochlake.jobs import campaign
from epochlake.jobs.gate import change_streaming
from epochlake.jobs.testing.change_histories import Change, Pass, StreamHistory, violations
from epochlake.jobs.testing.row_checkers import Access
from epochlake.jobs.testing.row_drawing import row_scenario
from epochlake.jobs.testing.row_themes import BY_NAME

WRITES = [("w1", 100, "QUORUM"), ("w2", 200, "ONE"), (None, 300, "ONE")]


def access(note: str | None, at: int, level: str) -> Access:
    kind = "delete" if note is None else "write"
    return Access(kind, "pipeline", at, at + 1, level != "ONE", {7: note}, level=level, times=(at,))


ALL = [access(*one) for one in WRITES]
LOSSY = [one for one in ALL if one.level == "ONE"]


def stream(*numbers: int, late: Sequence[int] = ()) -> list[Change]:
    changes = []
    for position, number in enumerate(numbers, 1):
        note, at, _ = WRITES[number]
        changes.append(Change(position, 7, "delete" if note is None else "insert", note, at, number in late))
    return changes


def wrong(changes: list[Change], shown: list[str | None], *, lossy: bool, append_only: bool = False) -> list[str]:
    history = StreamHistory(changes, [], [], {7: shown} if shown else {}, append_only, in_time=True, short=False)
    return violations(history, ALL, LOSSY if lossy else ())


@pytest.mark.parametrize(
    ("changes", "shown", "holds_without_losses", "holds"),
    [
        (stream(0, 1), ["w2"], True, True),
        (stream(0, 1), ["w1"], False, True),  # w2 was on one replica
        (stream(0, 1), [], False, False),  # and w1 on two
        (stream(0, 1, 2), [], True, True),
        (stream(0, 1, 2), ["w2"], False, True),  # nobody has the delete any more
        (stream(0, 1, 2), ["w1"], False, True),
        (stream(1, 0, late=[0]), ["w2"], True, True),
        (stream(1, 0, late=[0]), ["w1"], False, True),
        (stream(1, 0, late=[0]), [], False, False),
    ],
)
def test_reads_end_as_the_stream_does_but_for_what_one_replica_alone_may_have_had(
    changes: list[Change], shown: list[str | None], holds_without_losses: bool, holds: bool
) -> None:
    assert ("of key 7 a read shows" in str(wrong(changes, shown, lossy=False))) is not holds_without_losses
    assert ("of key 7 a read shows" in str(wrong(changes, shown, lossy=True))) is not holds


def test_of_rows_that_are_never_replaced_only_those_at_one_may_be_lost() -> None:
    assert wrong(stream(0, 1), ["w1", "w2"], lossy=False, append_only=True) == []
    assert wrong(stream(0, 1), ["w1"], lossy=False, append_only=True)
    assert wrong(stream(0, 1), ["w1"], lossy=True, append_only=True) == []
    assert wrong(stream(0, 1), ["w2"], lossy=True, append_only=True)
    assert wrong(stream(0), ["w1", "w2"], lossy=True, append_only=True)


def test_readers_of_single_streams_are_given_each_change_once_and_those_of_a_key_in_order() -> None:
    whole = stream(0, 1, 2)

    def said(*parts: tuple[int, Change]) -> str:
        history = StreamHistory(whole, [], [], {}, False, in_time=True, short=False, parts=parts)
        return "; ".join(violations(history, ALL))

    first, second, third = ((1, whole[0]), (1, whole[1]), (2, whole[2]))
    assert said(first, second, third) == ""
    assert "were not given" in said(first, third)
    assert "besides" in said(first, second, third, (2, whole[0]))
    assert "after a later one of its key" in said(second, first, third)


def test_readers_of_a_generation_go_on_with_the_next_one_where_it_begins() -> None:
    whole = stream(0, 1, 2)

    def said(came_to: int, *generations: int) -> str:
        parts = [*zip(generations, whole, strict=True)]
        known = {1: (0, 2), 2: (2, None)}
        history = StreamHistory(whole, [], [], {}, False, True, False, parts=parts, generations=known, came_to=came_to)
        return "; ".join(violations(history, ALL))

    assert said(2, 1, 1, 2) == ""
    assert "have not finished generation 1, and generation 2 has begun" in said(1, 1, 1, 2)
    assert "readers of generation 1, after position 0 and up to 2, were given Change(position=3" in said(2, 1, 1, 1)
    assert "readers of generation 2, after position 2 and up to None, were given Change(position=2" in said(2, 1, 2, 2)


def test_of_two_deletes_at_one_moment_a_reader_has_been_given_the_one_that_was_acknowledged_before() -> None:
    two = [access(None, 300, "QUORUM"), access(None, 300, "QUORUM")._replace(ended=900)]
    changes = [Change(position, 7, "delete", None, 300, late=False) for position in (1, 2)]

    def said(position: int) -> str:
        passes = [Pass("f0", 400, 500, position)]
        return str(violations(StreamHistory(changes, [], passes, {}, False, in_time=True, short=False), two))

    assert said(1) == "[]"
    assert "f0 read up to position 0 after a write by pipeline was acknowledged, which is at 1" in said(0)


def test_a_history_notices_that_readers_of_a_generation_go_on_where_the_next_one_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = row_scenario(1, theme=BY_NAME["divided_anew"])
    assert campaign.run(scenario).violations == []
    monkeypatch.setattr(change_streaming, "end_of", lambda *_: None)
    assert "have not finished generation" in str(campaign.run(scenario).violations)
