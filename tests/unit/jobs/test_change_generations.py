"""Generations of change streams over real Delta tables: all of them together have each change once, and in order."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from epochlake.jobs.administration import cancel_request, check_and_repair_cdc_streams
from epochlake.jobs.administration.change_streams import drop_changes, keep_changes
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.effects.sweeping import Sweeper
from epochlake.jobs.coordinator.tracks.request_scheduling import RequestTrack
from epochlake.jobs.coordinator.tracks.track import Tally, Track
from epochlake.jobs.gate.change_streaming import Changes
from epochlake.jobs.replicas.change_index import ChangeIndex, ChangesGone
from epochlake.jobs.upkeep.change_generations import keep_divided
from epochlake.jobs.upkeep.change_streams import keep_up
from epochlake.jobs.upkeep.change_track import ChangeTrack
from epochlake.jobs.views.change_streams import stream_statuses
from epochlake.jobs.views.open_requests import CoordinatorStatus, RequestStatus, request_status
from epochlake.metastore import metastore
from epochlake.metastore.errors import StorageUnavailable, WaitTimeout
from epochlake.metastore.metadata.events import DecideResize, FinishResize
from epochlake.metastore.metadata.features import CHANGE_GENERATIONS, SUPPORTED
from epochlake.metastore.metadata.model import RequestState
from epochlake.metastore.tables.metadata import PARTS
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

from tests.support.changes import FLIGHTS, aged, alone, flights, gone_back, index_of, rows, stream_of, told
from tests.support.clusters import SmallCluster
from tests.support.killed_access import Killed, killed_at
from tests.support.slices import some


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[SmallCluster]:
    """A table of two tablets that keeps its changes."""
    with flights(tmp_path, 2) as small:
        keep_changes(small.cluster, FLIGHTS)
        yield small


def resized(small: SmallCluster, kind: Resize = Resize.SPLIT) -> None:
    """The table has twice the tablets, or half of them; what that does to files is no matter here."""
    table_id = small.table.table_id
    number = small.cluster.catch_up().tablets.maps[table_id].resize_seq_number + 1
    small.cluster.commit(DecideResize(table_id, kind, number))
    small.cluster.commit(FinishResize(table_id, number))


def divided(small: SmallCluster) -> tuple[int, ...]:
    """The numbers of the generations that were made."""
    return keep_divided(small.cluster, stream_of(small)).committed


def by_streams(small: SmallCluster) -> list[tuple[str, int, str | None]]:
    """What readers are told who read each stream of a generation, one after the other, and then the next generation."""
    found = []
    for generation in small.cluster.change_generations(FLIGHTS):
        for stream in generation.streams:
            found += told(small, generation=generation.generation, stream=stream.stream)
    return found


def by_key(changes: list[tuple[str, int, str | None]]) -> dict[int, list[tuple[str, str | None]]]:
    """The changes of each key, in the order in which they are told."""
    found = defaultdict(list)
    for kind, key, note in changes:
        found[key].append((kind, note))
    return dict(found)


def test_the_first_generation_has_all_changes_in_the_ranges_of_the_tablets(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(8), "a")))
    assert keep_up(kept.cluster, stream_of(kept)).generation == 1
    [generation] = kept.cluster.change_generations(FLIGHTS)
    assert (generation.generation, generation.begins, generation.ends) == (
        1,
        kept.cluster.changes(FLIGHTS).position,
        None,
    )
    assert [(one.first, one.last) for one in generation.streams] == [(MIN_TOKEN, -1), (0, MAX_TOKEN)]
    parts = [told(kept, generation=1, stream=stream) for stream in (0, 1)]
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == sorted(told(kept))
    assert divided(kept) == ()
    [status] = stream_statuses(kept.cluster, kept.cluster.catch_up())
    assert (status.generation, status.streams) == (1, 2)


def test_a_split_begins_another_one_and_readers_come_to_the_end_of_the_first(kept: SmallCluster) -> None:
    divided(kept)
    kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(8), "before")))
    following = [iter(kept.cluster.changes(FLIGHTS, generation=1, stream=one, follow=True)) for one in (0, 1)]
    early = [row["id"] for one in following for row in next(one).to_pylist()]
    resized(kept)
    assert divided(kept) == (2,)
    kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(8), "after")))
    late = [row for one in following for batch in one for row in batch.to_pylist()]
    assert (sorted(early), late) == (list(range(8)), [])
    assert [len(one.streams) for one in kept.cluster.change_generations(FLIGHTS)] == [2, 4]
    assert by_key(by_streams(kept)) == by_key(told(kept))


def test_what_is_written_between_the_commit_and_the_mark_is_of_the_generation_before(kept: SmallCluster) -> None:
    divided(kept)
    resized(kept)

    def killed(*_: object) -> int:
        kept.cluster.write(FLIGHTS, rows({1: "between"}))
        raise Killed

    with patch.object(ChangeIndex, "mark_generation", killed), pytest.raises(Killed):
        divided(kept)
    found = [one for stream in (0, 1) for one in told(kept, generation=1, stream=stream)]
    assert found == [("upsert", 1, "between")]
    with pytest.raises(WaitTimeout, match="has not begun"):
        kept.cluster.changes(FLIGHTS, generation=2, stream=0)
    assert keep_divided(kept.cluster, stream_of(kept)).published == (2,)
    kept.cluster.write(FLIGHTS, rows({1: "after"}))
    assert by_key(by_streams(kept)) == {1: [("upsert", "between"), ("upsert", "after")]}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_makes_a_generation_and_is_killed_at_any_access_leaves_it_to_the_next(
    kept: SmallCluster, after: bool
) -> None:
    """Somebody writes before it and behind it, and somebody reads by what is there in between."""
    for step in count(1, some(1, 3)):
        ended = False
        with suppress(Killed), killed_at(step, after=after):
            divided(kept)
            ended = True
        kept.cluster.write(FLIGHTS, rows({step % 5: f"{step}"}))
        assert keep_up(kept.cluster, stream_of(kept)).begun
        kept.cluster.write(FLIGHTS, rows({step % 5: f"{step} again"}))
        assert by_key(by_streams(kept)) == by_key(told(kept))
        if ended and step > 1:
            break
        resized(kept, Resize.SPLIT if step % 2 else Resize.MERGE)
    numbers = [one.generation for one in kept.cluster.change_generations(FLIGHTS)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert step > 5


def test_two_that_make_it_at_once_make_one(kept: SmallCluster) -> None:
    divided(kept)
    resized(kept)
    mark, marks = ChangeIndex.mark_generation, []

    def marked(index: ChangeIndex, number: int, after: int) -> int:
        if not marks:
            marks.append(0)
            with Cluster(kept.cluster.configuration) as other:
                assert keep_divided(other, stream_of(kept)).published == (2,)
            kept.cluster.write(FLIGHTS, rows({1: "after"}))
        marks.append(mark(index, number, after))
        return marks[-1]

    with patch.object(ChangeIndex, "mark_generation", marked):
        assert keep_divided(kept.cluster, stream_of(kept)).published == ()
    assert marks[1] == marks[2]
    assert [one.begins for one in kept.cluster.change_generations(FLIGHTS)][1] == marks[1]


def test_generations_of_random_histories_have_each_change_once_and_in_order(tmp_path: Path, seed: int) -> None:
    """Readers of single streams, of which some are always half-way, beside writers, splits, merges and retention."""
    dice = random.Random(seed)
    with flights(tmp_path, 2) as small:
        keep_changes(small.cluster, FLIGHTS)
        divided(small)
        found: dict[int, list[tuple[str, int, str | None]]] = defaultdict(list)
        reading = {stream: (1, stream) for stream in range(2)}
        finished: dict[int, set[int]] = defaultdict(set)

        def read(number: int) -> None:
            generation, stream = reading[number]
            changes = small.cluster.changes(
                FLIGHTS, generation=generation, stream=stream, reader=f"r{generation}.{number}"
            )
            for batch in changes:
                found[generation] += [
                    (one["_change"] + " late" * one["_late"], one["id"], one["note"]) for one in batch.to_pylist()
                ]
            changes.commit()
            if changes.finished:
                finished[generation].add(stream)
                del reading[number]
            known = {one.generation: one for one in small.cluster.change_generations(FLIGHTS)}
            following = known.get(generation + 1)
            if following is not None and len(finished[generation]) == len(known[generation].streams) and not reading:
                reading.update({one.stream: (generation + 1, one.stream) for one in following.streams})

        for step in range(some(60, 30)):
            match dice.choice(["write", "write", "delete", "read", "read", "resize", "divide"]):
                case "write":
                    keys = dice.sample(range(12), dice.randint(1, 6))
                    small.cluster.write(FLIGHTS, rows(dict.fromkeys(keys, f"{step}")))
                case "delete":
                    small.cluster.delete(FLIGHTS, [{"id": dice.randrange(12)}])
                case "read" if reading:
                    read(dice.choice(sorted(reading)))
                case "resize":
                    maps = small.cluster.catch_up().tablets.maps[small.table.table_id]
                    grows = maps.count == 1 or (maps.count < 8 and dice.random() < 0.6)
                    resized(small, Resize.SPLIT if grows else Resize.MERGE)
                case "divide":
                    divided(small)
        divided(small)
        newest = max(one.generation for one in small.cluster.change_generations(FLIGHTS))
        for _ in range(100):
            for number in sorted(reading):
                read(number)
            if reading and {generation for generation, _ in reading.values()} == {newest}:
                for number in sorted(reading):
                    read(number)
                break
        in_order = [one for generation in sorted(found) for one in found[generation]]
        assert by_key(in_order) == by_key(told(small))


def test_a_reader_with_a_name_finishes_a_generation_before_the_next(kept: SmallCluster) -> None:
    divided(kept)
    for note in ("a", "b"):
        kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(4), note)))
        first = kept.cluster.changes(FLIGHTS, reader="r", generation=1, stream=0)
        if note == "a":
            next(iter(first))
            first.commit()
    resized(kept)
    divided(kept)
    with pytest.raises(InvalidRequest, match="Let it come to the end of the generation before"):
        kept.cluster.changes(FLIGHTS, reader="r", generation=2, stream=0)
    changes = kept.cluster.changes(FLIGHTS, reader="r", generation=1, stream=0)
    assert not changes.finished
    assert len([row for batch in changes for row in batch.to_pylist()]) > 0
    assert changes.finished
    changes.commit()
    assert list(kept.cluster.changes(FLIGHTS, reader="r", generation=1, stream=0)) == []
    assert list(kept.cluster.changes(FLIGHTS, reader="r", generation=2, stream=0)) == []


def test_a_name_that_reads_one_stream_is_refused_another_one_whose_changes_it_would_miss(kept: SmallCluster) -> None:
    divided(kept)
    kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(8), "a")))

    def read(stream: int | None, generation: int | None = 1, **asked: int) -> Changes:
        changes = kept.cluster.changes(FLIGHTS, reader="r", generation=generation, stream=stream, **asked)
        for _ in changes:
            pass
        return changes

    first = read(0)
    first.commit()
    with pytest.raises(InvalidRequest, match="before that in stream 1 of generation 1"):
        read(1)
    with pytest.raises(InvalidRequest, match="before that in all changes"):
        read(None, None)
    other = read(1, after=0)  # it was said from where
    with pytest.raises(InvalidRequest, match="has read stream 1 of generation 1"):
        first.commit()
    other.commit()
    resized(kept)
    divided(kept)
    ended = read(1)
    ended.commit()
    read(3, 2)
    assert ended.commit().part == (2, 3), "who stood still while another one went on is not listened to"
    with pytest.raises(InvalidRequest, match="has read stream 3 of generation 2"):
        read(1)
    for nonsense in ("4@nosuchnode", True, 1.0):
        with pytest.raises(InvalidRequest, match=f"{nonsense!r} is no generation"):
            read(0, nonsense)  # type: ignore[arg-type]


def test_a_reader_of_all_changes_from_before_may_go_on_in_streams(kept: SmallCluster) -> None:
    """What earlier versions have stored of a reader says no stream."""
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS, reader="r")
    list(changes)
    changes.commit()
    stored = Path(index_of(kept).uri, "_readers", "r.json").read_bytes()
    assert b"part" not in stored
    divided(kept)
    kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(8), "b")))
    found = told(kept, reader="r", generation=1, stream=0)
    assert found
    assert {note for _, _, note in found} == {"b"}


def test_without_the_feature_nothing_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = tuple(name for name in SUPPORTED if name != CHANGE_GENERATIONS)
    monkeypatch.setattr(metastore, "SUPPORTED", others)  # as of a cluster that an earlier version has begun
    with flights(tmp_path, 2) as small:
        keep_changes(small.cluster, FLIGHTS)
        assert keep_up(small.cluster, stream_of(small)).generation == 0
        assert list(small.cluster.change_generations(FLIGHTS)) == []
        with pytest.raises(InvalidRequest, match="no stream 0 of generation 1"):
            small.cluster.changes(FLIGHTS, generation=1, stream=0)


def test_generations_of_which_nothing_is_kept_go_and_their_readers_are_told(kept: SmallCluster) -> None:
    divided(kept)
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    resized(kept)
    divided(kept)
    kept.cluster.write(FLIGHTS, rows({1: "b"}))
    aged(kept, 0, 0)
    assert keep_up(kept.cluster, stream_of(kept)).dropped == 2
    resized(kept, Resize.MERGE)
    assert divided(kept) == (3,)
    assert [one.generation for one in kept.cluster.change_generations(FLIGHTS)] == [2, 3]
    with pytest.raises(ChangesGone):
        kept.cluster.changes(FLIGHTS, generation=1, stream=0)


def test_a_reader_that_was_paused_until_its_generation_had_left_is_given_nothing_of_later_ones(
    kept: SmallCluster,
) -> None:
    divided(kept)
    kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(8), "a")))
    following = iter(kept.cluster.changes(FLIGHTS, generation=1, stream=0, follow=True))
    assert next(following).num_rows
    for kind in (Resize.SPLIT, Resize.MERGE):
        resized(kept, kind)
        divided(kept)
    index = kept.cluster.change_indexes.of(stream_of(kept))
    index.drop(index.tail().position)
    resized(kept)
    divided(kept)
    kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(8), "b")))
    assert [one.generation for one in kept.cluster.change_generations(FLIGHTS)] == [3, 4]
    with pytest.raises(ChangesGone):
        next(following)


def test_description_tables_say_since_when_which_streams_are_there(kept: SmallCluster) -> None:
    divided(kept)
    resized(kept)
    divided(kept)
    metadata = kept.cluster.catch_up()
    generations = PARTS["change_generations"](metadata).to_pylist()
    assert [(one["table"], one["generation"], one["streams"]) for one in generations] == [
        (FLIGHTS, 1, 2),
        (FLIGHTS, 2, 4),
    ]
    assert generations[0]["generated_at"] < generations[1]["generated_at"]
    assert generations[0]["position"] < generations[1]["position"]
    ranges = PARTS["change_ranges"](metadata).to_pylist()
    newest = [(one["first_token"], one["last_token"]) for one in ranges if one["generation"] == 2]
    assert (newest[0][0], newest[-1][1]) == (MIN_TOKEN, MAX_TOKEN)
    assert all(one[1] + 1 == other[0] for one, other in pairwise(newest))


def test_another_stream_of_the_table_begins_with_its_own_generations(kept: SmallCluster) -> None:
    divided(kept)
    drop_changes(kept.cluster, FLIGHTS)
    keep_changes(kept.cluster, FLIGHTS)
    assert list(kept.cluster.change_generations(FLIGHTS)) == []
    assert divided(kept) == (1,)


def test_an_index_that_went_back_behind_a_generation_that_waits_is_said(kept: SmallCluster) -> None:
    divided(kept)

    def beginning() -> None:
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
        resized(kept)
        with patch.object(ChangeIndex, "mark_generation", side_effect=Killed), suppress(Killed):
            divided(kept)

    gone_back(kept, beginning)
    with pytest.raises(StorageUnavailable, match="went back behind the beginning of generation 2"):
        divided(kept)
    assert keep_up(kept.cluster, stream_of(kept)).begun


def test_the_coordinator_makes_a_generation_before_it_is_idle(kept: SmallCluster) -> None:
    track: Track = ChangeTrack(kept.cluster, begin=lambda task: task())
    for _ in range(2):
        track.advance(kept.cluster.catch_up())
    assert track.idle(kept.cluster.catch_up())
    resized(kept)
    assert not track.idle(kept.cluster.catch_up())
    track.advance(kept.cluster.catch_up())
    track.advance(kept.cluster.catch_up())
    assert track.idle(kept.cluster.catch_up())
    assert len(kept.cluster.change_generations(FLIGHTS)) == 2


def test_the_coordinator_is_idle_where_a_stream_has_not_begun(kept: SmallCluster) -> None:
    track = ChangeTrack(kept.cluster, begin=lambda task: task())
    with patch.object(ChangeIndex, "begun", lambda _: None):
        kept.lose("A")
        kept.lose("B")
        for _ in range(2):
            track.advance(kept.cluster.catch_up())
        assert track.idle(kept.cluster.catch_up())
    assert list(kept.cluster.change_generations(FLIGHTS)) == []


def test_a_check_ends_when_the_streams_of_all_tables_are_what_they_should_be(kept: SmallCluster) -> None:
    divided(kept)
    resized(kept)
    check_and_repair_cdc_streams(kept.cluster, request_id="check", reason="after a split")
    track: Track = ChangeTrack(kept.cluster, begin=lambda task: task())
    requests = RequestTrack(kept.cluster, Sweeper(kept.cluster), Tally())
    assert not requests.advance(kept.cluster.catch_up())
    assert not requests.blocked
    assert "not divided as the table is" in open_request(kept).blocked_by[-1]
    assert not track.idle(kept.cluster.catch_up())
    track.advance(kept.cluster.catch_up())
    assert kept.cluster.catch_up().requests["check"].state is RequestState.DONE
    assert len(kept.cluster.change_generations(FLIGHTS)) == 2
    row = PARTS["requests"](kept.cluster.metadata).to_pylist()[-1]
    assert (row["kind"], row["node"], row["state"]) == ("check_and_repair_cdc_streams", None, "done")


def test_a_check_says_that_an_index_has_lost_a_generation(kept: SmallCluster) -> None:
    divided(kept)

    def beginning() -> None:
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
        resized(kept)
        divided(kept)

    gone_back(kept, beginning)
    check_and_repair_cdc_streams(kept.cluster, request_id="check")
    track: Track = ChangeTrack(kept.cluster, begin=lambda task: task())
    track.advance(kept.cluster.catch_up())
    track.advance(kept.cluster.catch_up())
    assert "went back behind the beginning of generation 2" in track.blocked[0]
    assert kept.cluster.catch_up().requests["check"].state is RequestState.PENDING
    cancel_request(kept.cluster, "streams")
    assert kept.cluster.catch_up().requests["check"].state is RequestState.CANCELLED


def open_request(small: SmallCluster) -> RequestStatus:
    metadata = small.cluster.catch_up()
    [request] = metadata.open_requests()
    return request_status(small.cluster, metadata, request, None, CoordinatorStatus("not-asked"))
