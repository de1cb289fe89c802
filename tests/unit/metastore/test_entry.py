"""An entry: its hash covers every column, its chain is checked column by column, its payload is canonical."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import pkgutil
import typing

import msgspec
import numpy as np
import pytest
from epochlake.metastore.errors import HashMismatch, LogGap, LogUnreadable, Rejected, UnknownFormat
from epochlake.metastore.log.entry import (
    Entry,
    Position,
    decode_event,
    encode_event,
    entry_hash,
    position_of,
    verify_next,
)
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata import events
from epochlake.metastore.metadata.attachments import decode_replicas, encode_replicas
from epochlake.metastore.metadata.events import (
    EVENT_KINDS,
    GENERATION,
    KINDS,
    CreateKeyspace,
    Event,
    PauseChanges,
    RegisterNode,
)
from epochlake.metastore.metadata.model import Keyspace, PlacementKind, Volume

from tests.support.logs import START, chain, resealed, sealed

EVENT_MODULES = [
    importlib.import_module(f"{events.__name__}.{found.name}") for found in pkgutil.iter_modules(events.__path__)
]

OTHER = {
    "epoch": 3,
    "event": "ResumeChanges",
    "payload": '{"why": "y"}',
    "attachment": b"",
    "request_id": "other",
    "state_id": "ffffffff-ffff-7fff-bfff-ffffffffffff",
    "previous_state_id": "x",
    "author": "somebody",
    "reason": "another",
    "committed_at": 5,
    "incarnation": 2,
    "format": 2,
    "previous_hash": "f" * 64,
}


def entry() -> Entry:
    return sealed(PauseChanges(why="x"), position_of(chain(1)[0]))


@pytest.mark.parametrize("column", [field for field in Entry.__struct_fields__ if field != "hash"])
def test_the_hash_covers_every_column(column: str) -> None:
    changed = msgspec.structs.replace(entry(), **{column: OTHER[column]})
    assert getattr(changed, column) != getattr(entry(), column)
    assert entry_hash(changed) != entry_hash(entry())


def test_no_two_rows_have_the_same_hash_wherever_a_text_ends() -> None:
    pieces = ["", "1", "|", "1|", "|1", "1|1", "3|ab|", "é"]
    columns = ("request_id", "author", "reason", "event", "payload")
    hashes = {
        entry_hash(msgspec.structs.replace(entry(), **dict(zip(columns, texts, strict=True))))
        for texts in itertools.product(pieces, repeat=len(columns))
    }
    assert len(hashes) == len(pieces) ** len(columns)


def test_the_hash_is_sha_256_and_stays_the_same_from_version_to_version() -> None:
    fixed = Entry(2, "PauseChanges", '{"why":"é"}', b"\x00\xff", "r", "s", "p", "a", "w", 7, 1, 1, "0" * 64, "")
    head = f"2|12|PauseChanges|11|2|1|r|1|s|1|p|1|a|1|w|7|1|1|64|{'0' * 64}|"
    assert entry_hash(fixed) == hashlib.sha256(head.encode() + '{"why":"é"}'.encode() + b"\x00\xff").hexdigest()


WRONG: list[tuple[dict[str, object], type[LogUnreadable], str]] = [
    ({"epoch": 4}, LogGap, "from epoch 1 to 4: epoch 2 is missing"),
    ({"epoch": 1}, LogGap, "from epoch 1 to 1"),
    ({"format": 2}, UnknownFormat, "epoch 2 is written in format 2"),
    ({"previous_hash": "e" * 64}, HashMismatch, "epoch 2 does not continue epoch 1"),
    ({"previous_state_id": next_state_id("")}, HashMismatch, "epoch 2 does not continue epoch 1"),
    ({"state_id": "00000000-0000-7000-8000-000000000000"}, HashMismatch, "epoch 2: its state id is not greater"),
]


@pytest.mark.parametrize(("changes", "error", "message"), WRONG)
def test_an_entry_that_does_not_continue_the_log_is_refused_by_epoch(
    changes: dict[str, object], error: type[LogUnreadable], message: str
) -> None:
    first, second = chain(2)
    with pytest.raises(error, match=message):
        verify_next(position_of(first), resealed(second, **changes))


def test_an_entry_whose_content_is_not_what_its_hash_says_is_refused_by_epoch() -> None:
    first, second = chain(2)
    assert verify_next(position_of(first), second) == position_of(second)
    with pytest.raises(HashMismatch, match="epoch 2 is not what its hash says"):
        verify_next(position_of(first), msgspec.structs.replace(second, reason="forged"))


def test_the_same_event_has_the_same_payload_however_it_was_made() -> None:
    one = CreateKeyspace(Keyspace("k", PlacementKind.TABLETS, "NetworkTopologyStrategy", {"a": 1, "b": 2}))
    two = CreateKeyspace(Keyspace("k", PlacementKind.TABLETS, "NetworkTopologyStrategy", {"b": 2, "a": 1}))
    assert encode_event(one) == encode_event(two)


def test_every_kind_of_event_is_in_the_table_once_by_its_own_name() -> None:
    assert all(KINDS[kind.name] is kind.struct and kind.struct.kind() == kind.name for kind in EVENT_KINDS)
    assert len({kind.name for kind in EVENT_KINDS}) == len({kind.struct for kind in EVENT_KINDS}) == len(EVENT_KINDS)


def test_every_event_that_there_is_has_a_kind_since_a_generation_that_was() -> None:
    structs = {struct for module in EVENT_MODULES for struct in vars(module).values() if _is_event(struct)}
    assert structs == set(KINDS.values())
    since = [kind.since for kind in EVENT_KINDS]
    assert since == sorted(since)
    assert 1 <= since[0] <= since[-1] <= GENERATION


def _is_event(struct: object) -> bool:
    return isinstance(struct, type) and issubclass(struct, Event) and struct is not Event


def test_an_event_keeps_its_name_in_the_log_when_its_class_gets_another_one() -> None:
    PauseChanges.__name__ = "StopChanges"
    try:
        assert encode_event(PauseChanges(why="x")).event == "PauseChanges"
        assert decode_event("PauseChanges", '{"why":"x"}', None, epoch=1) == PauseChanges(why="x")
    finally:
        PauseChanges.__name__ = "PauseChanges"


def test_an_event_that_is_not_in_the_table_of_kinds_is_not_written() -> None:
    with pytest.raises(TypeError, match="Unlisted is no kind of event that the log knows"):
        encode_event(Unlisted())


class Unlisted(Event, frozen=True):
    """An event that nobody has put into the table."""


def test_an_event_that_is_not_known_or_does_not_fit_is_refused_by_epoch() -> None:
    node = RegisterNode("r", 1, "n1", "h1", "dc", "r1", (Volume(1, "d1", "/d1", 10),))
    encoded = encode_event(node)
    assert decode_event(encoded.event, encoded.payload, None, epoch=9) == node
    for kind, payload in (("Fly", "{}"), ("RegisterNode", "{}"), ("RegisterNode", "[1"), ("CreateTable", "{}")):
        with pytest.raises(UnknownFormat, match="epoch 9"):
            decode_event(kind, payload, None, epoch=9)
    with pytest.raises(UnknownFormat, match="epoch 9"):
        decode_event("CreateTable", "[]", b"", epoch=9)


def test_state_ids_grow_also_when_the_clock_goes_back() -> None:
    ids = [next_state_id("")]
    for _ in range(1000):
        ids.append(next_state_id(ids[-1]))
    assert ids == sorted(set(ids))
    ahead = "fffffff0-0000-7000-8000-000000000000"
    assert next_state_id(ahead) > ahead


def test_the_beginning_of_a_log_continues_nothing() -> None:
    [first] = chain(1)
    assert Position(0, "", "0" * 64) == START
    assert verify_next(START, first) == position_of(first)


@pytest.mark.parametrize("attachment", [b"", b"not arrow", bytes(encode_replicas(np.ones((4, 3), np.int32)))[:-40]])
def test_a_tablet_map_that_cannot_be_read_is_rejected(attachment: bytes) -> None:
    with pytest.raises(Rejected, match="invalid-event"):
        decode_replicas(attachment)


def test_a_payload_with_a_field_that_this_version_does_not_know_is_refused() -> None:
    with pytest.raises(UnknownFormat, match="epoch 7"):
        decode_event("SwitchBalancing", '{"on":true,"until":"tomorrow"}', None, epoch=7)


def structs_in(annotation: object, found: set[type]) -> set[type]:
    """All structs that values of a type may hold, however deep."""
    for argument in typing.get_args(annotation):
        structs_in(argument, found)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct) and annotation not in found:
        found.add(annotation)
        for field in msgspec.structs.fields(annotation):
            structs_in(field.type, found)
    return found


def test_nothing_in_an_event_that_this_version_does_not_know_is_passed_over() -> None:
    """A follower that leaves out what a newer version wrote would have other metadata than the one that wrote it."""
    held = set().union(*(structs_in(kind, set()) for kind in KINDS.values()))
    assert {Volume, Keyspace} < held
    assert [struct.__name__ for struct in held if not struct.__struct_config__.forbid_unknown_fields] == []
    payload = encode_event(RegisterNode("r", 1, "n1", "h1", "dc", "r1", (Volume(1, "d1", "/d1", 10),))).payload
    assert '"capacity":10' in payload
    with pytest.raises(UnknownFormat, match="epoch 9"):
        decode_event("RegisterNode", payload.replace('"capacity":10', '"capacity":10,"speed":7'), None, epoch=9)
