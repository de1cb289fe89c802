"""What earlier versions have stored is read for ever, and what is written today is written the same tomorrow.

The golden files below `tests/data/formats` are kept as they were written. Those of generations 1 to 3 come from the
code of then.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from epochlake.metastore.committing.offers import decode_proposals, encode_proposals
from epochlake.metastore.committing.submissions import Submission
from epochlake.metastore.coordination.head import Head, decode_head
from epochlake.metastore.coordination.leases import Lease
from epochlake.metastore.coordination.leases import decode as decode_lease
from epochlake.metastore.errors import UnknownFormat
from epochlake.metastore.following import snapshot_format
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.snapshot_format import decode_snapshot, encode_snapshot, format_of
from epochlake.metastore.following.snapshots import Snapshots
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import ASKED, Entry, decode_event, encode_event, entry_hash, position_of
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.component import components_of
from epochlake.metastore.metadata.events import EVENT_KINDS, GENERATION, KINDS, PauseChanges, TakeSnapshot
from epochlake.metastore.metadata.fence import Fence

from tests.support import golden
from tests.support.format_examples import EVENTS
from tests.support.golden import FORMATS, WHAT_TO_DO, entries_in, entry_file, entry_in, entry_of, history_file
from tests.support.logs import put
from tests.support.storages import STORAGE

EXAMPLES = pytest.mark.parametrize(("kind", "generation"), EVENTS, ids=lambda part: str(part))
GENERATIONS = pytest.mark.parametrize("generation", golden.generations())
NEWEST = dict(sorted(EVENTS))


def replayed(generation: int) -> ClusterMetadata:
    log = InMemoryLog()
    put(log, entries_in(history_file(generation)))
    return Follower(log).catch_up()


# Events


def test_every_kind_of_event_has_a_golden_entry() -> None:
    without = sorted(set(KINDS) - set(NEWEST))
    assert not without, f"No golden entry of {', '.join(without)}. {WHAT_TO_DO}"


@EXAMPLES
def test_a_golden_entry_is_read_as_the_event_that_it_is(kind: str, generation: int) -> None:
    assert entry_file(kind, generation).exists(), f"No golden entry {kind}.{generation}. {WHAT_TO_DO}"
    entry = entry_in(entry_file(kind, generation))
    assert entry.event == kind
    assert entry.decode() == EVENTS[kind, generation]
    assert entry_hash(entry) == entry.hash


@pytest.mark.parametrize("kind", NEWEST)
def test_an_event_is_written_today_as_its_newest_golden_entry_has_it(kind: str) -> None:
    file = entry_file(kind, NEWEST[kind])
    assert golden.as_json(entry_of(EVENTS[kind, NEWEST[kind]])) == file.read_text(encoding="utf-8"), (
        f"{kind} is not written as in {file.name} any more. A field that is new needs a default, and an example under "
        f"generation {GENERATION}. {WHAT_TO_DO}"
    )


@EXAMPLES
def test_an_event_is_read_and_written_again_without_a_loss(kind: str, generation: int) -> None:
    encoded = encode_event(entry_in(entry_file(kind, generation)).decode())
    assert decode_event(encoded.event, encoded.payload, encoded.attachment, epoch=1) == EVENTS[kind, generation]


def test_every_golden_entry_is_looked_at() -> None:
    found = {file.name for file in (FORMATS / "entries").iterdir()}
    assert found == {entry_file(*example).name for example in EVENTS}


def test_an_example_is_of_a_generation_in_which_there_was_its_kind() -> None:
    since = {kind.name: kind.since for kind in EVENT_KINDS}
    assert {kind: min(g for k, g in EVENTS if k == kind) for kind in KINDS} == since


def test_every_field_of_an_event_is_given_in_its_newest_example() -> None:
    missing = [
        f"{kind}.{field.name}"
        for kind, generation in NEWEST.items()
        for field in msgspec.structs.fields(KINDS[kind])
        if field.default is not msgspec.NODEFAULT
        and getattr(EVENTS[kind, generation], field.name) == field.default
        and f"{kind}.{field.name}" not in ("CreateTable.attachment",)  # its first example has one
    ]
    assert not missing, f"A field that has its default proves nothing: {', '.join(missing)}. {WHAT_TO_DO}"


def test_the_words_of_the_submitter_are_kept_beside_the_fields() -> None:
    stored = '{"_asked":"pause changes","why":"x"}'
    assert encode_event(PauseChanges("x"), "pause changes").payload == stored
    assert (ASKED, decode_event("PauseChanges", stored, None, epoch=1)) == ("_asked", PauseChanges("x"))


def test_the_command_writes_what_is_missing_and_leaves_alone_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert golden.write_missing() == []
    monkeypatch.setattr(golden, "FORMATS", tmp_path)
    kept = entry_file("PauseChanges", 1)
    kept.parent.mkdir()
    kept.write_text("as it was")
    # What an earlier generation wrote cannot be written any more; a history has a snapshot.
    assert len(golden.write_missing()) == len(KINDS) - 1 + 2
    assert golden.write_missing() == []
    assert kept.read_text() == "as it was"


# Logs and snapshots


def test_there_is_a_history_of_every_generation() -> None:
    assert golden.generations() == list(range(1, GENERATION + 1)), WHAT_TO_DO


@GENERATIONS
def test_the_log_of_a_generation_is_replayed_to_the_snapshot_that_it_wrote(generation: int) -> None:
    entries = entries_in(history_file(generation))
    metadata, position = decode_snapshot(golden.snapshot_file(generation).read_bytes())
    assert position == position_of(entries[-1])
    assert replayed(generation) == metadata


@GENERATIONS
def test_every_event_of_the_log_of_a_generation_is_valid_where_it_is(generation: int) -> None:
    metadata = ClusterMetadata.empty()
    for entry in entries_in(history_file(generation)):
        event = entry.decode()
        metadata.check(event)
        metadata = metadata.apply(event, entry.state_id)


@GENERATIONS
def test_the_digest_in_the_log_of_a_generation_proves_its_snapshot(generation: int) -> None:
    event = entries_in(history_file(generation))[-1].decode()
    assert isinstance(event, TakeSnapshot)
    assert bool(event.digest) is (generation >= 3)
    assert event.proves(decode_snapshot(golden.snapshot_file(generation).read_bytes())[0])


def test_snapshots_of_every_format_are_read() -> None:
    formats = {number: format_of(golden.snapshot_file(number).read_bytes()) for number in (1, 2, 3, 4)}
    assert formats == {1: 1, 2: 2, 3: 2, 4: 2}
    newest = golden.snapshot_file(golden.generations()[-1]).read_bytes()
    known = max(component.since for component in components_of(ClusterMetadata).values())
    assert format_of(newest) == known, f"No golden snapshot of format {known}. {WHAT_TO_DO}"


def test_a_snapshot_is_written_today_as_the_newest_golden_one() -> None:
    newest = golden.generations()[-1]
    position = position_of(entries_in(history_file(newest))[-1])
    assert encode_snapshot(replayed(newest), position) == golden.snapshot_file(newest).read_bytes(), (
        f"A snapshot is not written as {newest}.snapshot any more. Whoever compares it with what an earlier version "
        "wrote would take that for damaged: raise `FORMAT` in snapshot_format.py and `GENERATION` in events/kinds.py, "
        "and run `make golden`. Never change or delete a golden file: clusters hold what is in it."
    )


def test_a_snapshot_of_a_format_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, position = decode_snapshot(golden.snapshot_file(4).read_bytes())
    known = max(component.since for component in components_of(ClusterMetadata).values())
    monkeypatch.setattr(snapshot_format, "FORMAT", known + 1)
    newer = encode_snapshot(metadata, position)
    monkeypatch.undo()
    with pytest.raises(UnknownFormat, match=f"format {known + 1}, this version knows formats 1 to {known}"):
        decode_snapshot(newer)


@pytest.mark.parametrize("generation", [1, 4])
def test_the_table_of_the_log_is_read_and_goes_on(tmp_path: Path, generation: int) -> None:
    uri = str(shutil.copytree(FORMATS / "logs" / str(generation), tmp_path / "log"))
    entries = entries_in(history_file(generation))
    assert DeltaLog(STORAGE, uri).read(0) == entries
    pause = entry_of(PauseChanges("x"), position_of(entries[-1]))
    put(DeltaLog(STORAGE, uri), [pause])
    assert DeltaLog(STORAGE, uri).read(0) == [*entries, pause]


# Small things


def test_names_of_snapshots() -> None:
    assert Snapshots(STORAGE, "root/snapshots").path(17) == names()["snapshot of epoch 17"]


def test_a_fence_is_written_as_its_epoch_and_with_its_incarnation_after_the_first() -> None:
    fences = names()["fences"]
    assert [str(Fence(22)), str(Fence(22, 3))] == fences
    assert [Fence.decode(text) for text in fences] == [Fence(22), Fence(22, 3)]
    assert [int(Fence.decode(text)) for text in fences] == names()["fences as numbers"]


def test_the_head_in_zookeeper() -> None:
    head = Head(7, "00000007-0000-7000-8000-000000000000", "ab" * 32, 2)
    assert msgspec.json.encode(head) == stored("head.json")
    assert decode_head(stored("head.json")) == head
    assert decode_head(stored("head-of-generation-1.json")) == msgspec.structs.replace(head, incarnation=1)


def test_a_lease() -> None:
    lease = Lease("nightly", "p-1", 7, ("air.flights", "sky.stars"), 1_700_000_000_000, "host-1", 4711)
    assert msgspec.json.encode(lease) == stored("lease.json")
    assert decode_lease("lease.json", stored("lease.json")) == lease


def test_proposals_that_committers_offer_each_other() -> None:
    events = {"r-1": EVENTS["PauseChanges", 1], "r-2": EVENTS["CreateTable", 1]}
    offered = [Submission(event, name, "golden", "why", 0.0, None, "asked") for name, event in events.items()]
    assert encode_proposals(offered) == stored("proposals.msgpack")
    read = decode_proposals(stored("proposals.msgpack"))
    assert {one.request_id: one.plan(ClusterMetadata.empty())[0] for one in read} == events
    assert [(one.author, one.reason) for one in read] == [("golden", "why")] * 2


def test_an_entry_has_the_columns_that_it_had() -> None:
    assert list(Entry.__struct_fields__) == names()["columns of the log"]


def stored(name: str) -> bytes:
    return (FORMATS / "metastore" / name).read_bytes()


def names() -> dict[str, list | str]:
    return json.loads(stored("names.json"))
