"""What callers give is looked at before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.committing.arguments import _hints, described, fits
from epochlake.metastore.committing.changes import Change, FixedChange
from epochlake.metastore.metadata.events import SetMaintenance
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.placement.errors import InvalidRequest


class Volume(NamedTuple):
    name: str
    capacity: int | None


class Options(msgspec.Struct, frozen=True):
    tags: Sequence[str] | None = None


FITTING: list[tuple[Any, Any]] = [
    ("a", str),
    (1, int),
    (np.int64(1), int),
    (1, float),
    (0.5, float),
    (np.float32(0.5), float),
    (True, bool),
    (None, int | None),
    (("a", "b"), Sequence[str]),
    (["a"], tuple[str, ...]),
    (np.array([1, 2]), Sequence[int]),
    ({"a", "b"}, Collection[str]),
    ({"dc1": 3}, Mapping[str, int]),
    (("a", 1), tuple[str, int]),
    (Volume("a", None), Volume | tuple[str, int]),
    ([("a", 1), Volume("a", 1)], Sequence[Volume | tuple[str, int]]),
    (Options(["a"]), Options),
    (PlacementKind.RING, PlacementKind),
    (PlacementKind.RING.value, PlacementKind),
    (object(), Any),
]

WRONG: list[tuple[Any, Any, str]] = [
    ("\ud800", str, "a text"),
    (1, str, "a text"),
    ("1", int, "a whole number"),
    (True, int, "a whole number"),
    (1.0, int, "a whole number"),
    ("1", float, "a number"),
    (1, bool, "True or False"),
    ("", int | None, "a whole number or None"),
    ("ssd", Sequence[str], "a list of texts"),
    (b"ssd", Sequence[str], "a list of texts"),
    ({"a": 1}, Sequence[str], "a list of texts"),
    ([1], Sequence[str], "a list of texts"),
    (iter(["a"]), Sequence[str], "a list of texts"),
    ({"a"}, Sequence[str], "a list of texts"),
    ([("dc1", 3)], Mapping[str, int], "a mapping of texts to whole numbers"),
    ({"dc1": "3"}, Mapping[str, int], "a mapping of texts to whole numbers"),
    (("a",), tuple[str, int], "(a text, a whole number)"),
    (Volume("a", "1"), Volume, "a Volume"),  # type: ignore[arg-type]
    (Options("ssd"), Options, "a Options"),
    ("rings", PlacementKind, "'tablets' or 'ring'"),
]


@pytest.mark.parametrize(("value", "hint"), FITTING)
def test_what_fits(value: Any, hint: Any) -> None:
    assert fits(value, hint)


@pytest.mark.parametrize(("value", "hint", "words"), WRONG)
def test_what_does_not_fit_and_what_would(value: Any, hint: Any, words: str) -> None:
    assert not fits(value, hint)
    assert described(hint) == words


def _all_below(kind: type) -> list[type]:
    return [kind, *(found for child in kind.__subclasses__() for found in _all_below(child))]


def test_the_annotations_of_every_change_can_be_looked_at() -> None:
    changes = [kind for kind in _all_below(Change) if kind not in (Change, FixedChange)]
    assert len(changes) > 20
    for change in changes:
        for hint in _hints(change).values():
            assert described(hint)
            fits(object(), hint)


WRONG_CALLS: dict[str, tuple[Callable[[Cluster], object], str]] = {
    "tags as a text": (lambda c: administration.alter_node(c, "n1", tags="ssd"), "a list of texts"),
    "tags of a table": (
        lambda c: administration.alter_table(c, "air.t", OptionChanges(tags="ssd")),
        "changes cannot be .*'ssd'",
    ),
    "weight as a text": (lambda c: administration.alter_node(c, "n1", weight="2"), "a number"),  # type: ignore[arg-type]
    "name as a number": (lambda c: administration.decommission(c, 1), "a text"),  # type: ignore[arg-type]
    "a node without volumes": (
        lambda c: administration.add_node(c, "n9", "dc1", "r1", "/tmp/x"),  # type: ignore[arg-type]
        "a list of",
    ),
    "replication as a number": (
        lambda c: administration.create_keyspace(c, "k", 3),  # type: ignore[arg-type]
        "a mapping of texts to whole numbers",
    ),
    "a key as a text": (
        lambda c: administration.create_table(c, "air.u", [("id", "bigint", False)], "id"),
        "a list of texts",
    ),
    "tablets as a text": (
        lambda c: administration.create_table(c, "air.u", [("id", "bigint", False)], ["id"], tablets="4"),  # type: ignore[arg-type]
        "a whole number",
    ),
    "an empty request id": (lambda c: administration.pause_balancing(c, request_id=""), "request id ''"),
    "a request id of blanks": (lambda c: administration.pause_balancing(c, request_id=" "), "request id ' '"),
    "a request id that is a number": (
        lambda c: administration.pause_balancing(c, request_id=7),  # type: ignore[typeddict-item]
        "request id 7",
    ),
    "an endless timeout": (lambda c: administration.pause_balancing(c, timeout=float("inf")), "inf seconds"),
    "a timeout that is no number": (lambda c: administration.pause_balancing(c, timeout=float("nan")), "nan seconds"),
    "a timeout below zero": (lambda c: administration.pause_balancing(c, timeout=-1), "-1 seconds"),
    "a timeout as a text": (
        lambda c: administration.pause_balancing(c, timeout="5"),  # type: ignore[typeddict-item]
        "'5' seconds",
    ),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_argument_is_named_and_nothing_is_committed(cluster: Cluster, name: str) -> None:
    call, words = WRONG_CALLS[name]
    before = cluster.catch_up().epoch
    with pytest.raises(InvalidRequest, match=words):
        call(cluster)
    assert cluster.catch_up().epoch == before


def test_what_is_beside_a_change_is_looked_at_too(cluster: Cluster) -> None:
    before = cluster.catch_up().epoch
    beside: list[dict[str, Any]] = [
        {"timeout": 1e30},
        {"timeout": float("nan")},
        {"expect_epoch": "x"},
        {"expect_epoch": float(before)},
        {"reason": -1},
        {"reason": ["a"]},
    ]
    for arguments in beside:
        with pytest.raises(InvalidRequest):
            administration.set_maintenance(cluster, "n1", True, **arguments)
        with pytest.raises(InvalidRequest):
            cluster.commit(SetMaintenance(1, True), **arguments)
    with pytest.raises(InvalidRequest, match="cannot be called"):
        administration.add_node(cluster, "n9", "dc1", "r1", [("a/b", "/tmp/x", 1)])
    for table in (None, 1, []):
        with pytest.raises(InvalidRequest, match="no name of a table"):
            cluster.metadata.table(table)  # type: ignore[arg-type]
    assert cluster.catch_up().epoch == before
