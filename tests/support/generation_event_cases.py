"""Events of generations of change streams, on metadata that they do and do not fit: cases for `test_events.py`."""

from __future__ import annotations

from functools import cache

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    CancelRequest,
    CommitGenerations,
    DecideResize,
    EnableFeatures,
    FinishRequest,
    FinishResize,
    KeepChanges,
    NewGeneration,
    PauseRequest,
    PublishedGeneration,
    PublishGenerations,
    RequestStreamCheck,
    ShelveTable,
    StartRequest,
)
from epochlake.metastore.metadata.events.change_generations import MOST_STREAMS
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tokens import MIN_TOKEN

from tests.support.histories import applied, ring_cluster, small_cluster

FLIGHTS, STARS = "id-flights", "id-stars"


@cache
def scenes() -> dict[str, ClusterMetadata]:
    """`divided` has a generation of `air.flights` that is published; `divided, split` has twice the tablets since."""
    small, ring = small_cluster(), ring_cluster()
    keep = KeepChanges(FLIGHTS, "air.flights", "s", 1.0, 1.0)
    kept = applied([EnableFeatures(SUPPORTED), keep], small)
    on_ring = applied([EnableFeatures(SUPPORTED), KeepChanges(STARS, "sky.stars", "r", 1.0, 1.0)], ring)
    committed = applied([committed_at(5, flights())], kept)
    divided = applied([published(1, 3)], committed)
    split = applied([DecideResize(FLIGHTS, Resize.SPLIT, 1), FinishResize(FLIGHTS, 1)], divided)
    return {
        "streams without the feature": applied([keep], small),
        "streams": kept,
        "streams, table shelved": applied([ShelveTable(FLIGHTS, "air.flights")], kept),
        "streams on the ring": on_ring,
        "divided, not published": committed,
        "divided": divided,
        "divided, split": split,
        "streams, checked": applied([RequestStreamCheck("check-1")], kept),
        "divided, split, checked": applied([RequestStreamCheck("check-1")], split),
        "divided, checked": applied([RequestStreamCheck("check-1")], divided),
        "divided, check paused": applied([RequestStreamCheck("check-1"), PauseRequest("check-1")], divided),
        "divided on the ring, checked": applied(
            [
                committed_at(5, stars(*on_ring.placements(STARS).lows.tolist())),
                PublishGenerations((PublishedGeneration(STARS, "r", 1, 1),)),
                RequestStreamCheck("check-1"),
            ],
            on_ring,
        ),
        "divided twice": applied([committed_at(6, flights(2, 3, 8)), published(2, 9)], split),
    }


def flights(number: int = 1, after: int = 3, count: int = 4, stream: str = "s") -> NewGeneration:
    return NewGeneration(FLIGHTS, stream, number, after, count)


def stars(*lows: int, count: int = 0) -> NewGeneration:
    return NewGeneration(STARS, "r", 1, 0, count, lows)


def committed_at(at: int, *new: NewGeneration) -> CommitGenerations:
    return CommitGenerations(new, at)


def published(number: int, position: int, oldest: int = 0, stream: str = "s") -> PublishGenerations:
    return PublishGenerations((PublishedGeneration(FLIGHTS, stream, number, position, oldest),))


def ring_lows() -> tuple[int, ...]:
    return tuple(scenes()["streams on the ring"].placements(STARS).lows.tolist())


REJECTED: list[tuple[str, object, str]] = [
    ("streams without the feature", committed_at(5, flights()), "feature-not-enabled"),
    ("streams without the feature", published(1, 3), "feature-not-enabled"),
    ("streams", committed_at(5), "nothing-to-do"),
    ("streams", committed_at(5, flights(), flights()), "invalid-event"),
    ("streams", committed_at(5, flights(stream="another")), "stale-plan"),
    ("streams, table shelved", committed_at(5, flights()), "stale-plan"),
    ("streams", committed_at(5, stars(MIN_TOKEN)), "stale-plan"),
    ("streams", committed_at(5, flights(2)), "stale-plan"),
    ("streams", committed_at(5, flights(count=8)), "stale-plan"),
    ("streams", committed_at(5, flights(count=0)), "invalid-event"),
    ("streams", committed_at(5, flights(after=-1)), "invalid-event"),
    ("streams on the ring", lambda: committed_at(5, NewGeneration(STARS, "r", 1, 0, 4, ring_lows())), "invalid-event"),
    ("streams on the ring", lambda: committed_at(5, stars(*ring_lows()[1:])), "invalid-event"),
    ("streams on the ring", lambda: committed_at(5, stars(MIN_TOKEN, *ring_lows()[2:0:-1])), "invalid-event"),
    ("streams on the ring", committed_at(5, stars(MIN_TOKEN, *range(MOST_STREAMS))), "invalid-event"),
    ("streams on the ring", committed_at(5, stars(MIN_TOKEN, 12345)), "stale-plan"),
    ("streams on the ring", committed_at(5, stars(count=4)), "stale-plan"),
    ("divided", committed_at(6, flights(1)), "stale-plan"),
    ("divided", committed_at(6, flights(2)), "nothing-to-do"),
    ("divided, split", committed_at(5, flights(2, 3, 8)), "stale-plan"),
    ("divided, split", committed_at(6, flights(2, 2, 8)), "stale-plan"),
    ("divided, split", committed_at(6, flights(2, 3, 4)), "stale-plan"),
    ("divided, not published", PublishGenerations(()), "nothing-to-do"),
    ("divided, not published", PublishGenerations(published(1, 3).published * 2), "invalid-event"),
    ("divided, not published", published(1, 3, stream="another"), "stale-plan"),
    ("divided, not published", published(2, 3), "stale-plan"),
    ("divided, not published", published(1, 2), "invalid-event"),
    ("divided, not published", published(1, 3, oldest=2), "invalid-event"),
    ("divided", published(1, 3), "nothing-to-do"),
    ("streams", published(1, 3), "nothing-to-do"),
    ("streams without the feature", RequestStreamCheck("check-1"), "feature-not-enabled"),
    ("streams, checked", RequestStreamCheck("check-1"), "request-exists"),
    ("streams, checked", RequestStreamCheck("check-2"), "request-in-the-way"),
    ("streams, checked", StartRequest("check-1"), "wrong-request"),
    ("streams, checked", FinishRequest("check-1"), "streams-not-divided"),
    ("divided, split, checked", FinishRequest("check-1"), "streams-not-divided"),
    ("divided, check paused", FinishRequest("check-1"), "request-paused"),
]

VALID: list[tuple[str, object]] = [
    ("streams", committed_at(5, flights())),
    ("streams on the ring", lambda: committed_at(5, stars(*ring_lows()))),
    ("streams on the ring", lambda: committed_at(5, stars(*ring_lows()[::2]))),
    ("divided, not published", published(1, 3)),
    ("divided, split", committed_at(6, flights(2, 3, 8))),
    ("streams", RequestStreamCheck("check-1")),
    ("streams, table shelved", RequestStreamCheck("check-1")),
    ("streams, checked", CancelRequest("check-1")),
    ("streams, checked", PauseRequest("check-1")),
    ("divided, checked", FinishRequest("check-1")),
    ("divided on the ring, checked", FinishRequest("check-1")),
    ("divided twice", KeepChanges(FLIGHTS, "air.flights", "s", 2.0, 2.0)),
]
