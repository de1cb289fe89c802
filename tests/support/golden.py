"""Golden files: what every version of the product has stored, kept as it was, below `tests/data/formats`.

A golden file is read for ever and never changed. `make golden` writes the files that are missing, for new kinds of
events, and leaves every other one alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from epochlake.metastore.following.snapshot_format import encode_snapshot
from epochlake.metastore.log.entry import GENESIS, Entry, Position, position_of
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    GENERATION,
    AlterColumns,
    AnnounceVersion,
    CreateKeyspace,
    EnableFeatures,
    Event,
    PinTablets,
    TakeSnapshot,
)
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.metastore.metadata.model import Check

from tests.support import histories
from tests.support.format_examples import EVENTS
from tests.support.logs import sealed

FORMATS = Path(__file__).parents[1] / "data" / "formats"

WHAT_TO_DO = (
    "Give an example of it in tests/support/format_examples.py, run `make golden`, look at the new file and commit it. "
    "Never change or delete a golden file: clusters hold what is in it."
)

BEFORE = Position(6, "00000006-0000-7000-8000-000000000000", GENESIS)
"""Where the golden entries of single events continue a log."""


def entry_of(event: Event, after: Position = BEFORE) -> Entry:
    """The entry of an event with nothing in it that is not the same each time."""
    return sealed(event, after, state_id=f"{after.epoch + 1:08}-0000-7000-8000-000000000000", author="golden")


def as_json(entry: Entry) -> str:
    """All columns of an entry, for people: the payload as the text that it is, the attachment in Base64."""
    columns = msgspec.structs.asdict(entry)
    if entry.attachment is not None:
        columns["attachment"] = base64.b64encode(entry.attachment).decode()
    return json.dumps(columns, indent=1, ensure_ascii=False) + "\n"


def from_json(columns: dict[str, Any]) -> Entry:
    """What `as_json` was given."""
    attachment = columns["attachment"]
    return Entry(**columns | {"attachment": None if attachment is None else base64.b64decode(attachment)})


def entry_file(kind: str, generation: int) -> Path:
    """The entry of a kind of event as a generation of the product was the first to write it."""
    return FORMATS / "entries" / f"{kind}.{generation}.json"


def entry_in(file: Path) -> Entry:
    return from_json(json.loads(file.read_text(encoding="utf-8")))


def history_file(generation: int) -> Path:
    """A whole log, as a generation of the product wrote it; a snapshot of its last epoch is beside it."""
    return FORMATS / "histories" / f"{generation}.json"


def snapshot_file(generation: int) -> Path:
    return history_file(generation).with_suffix(".snapshot")


def entries_in(file: Path) -> list[Entry]:
    return [from_json(columns) for columns in json.loads(file.read_text(encoding="utf-8"))]


def generations() -> list[int]:
    """Those of which there is a history, ascending."""
    return sorted(int(file.stem) for file in (FORMATS / "histories").glob("*.json"))


def recorded(history: Callable[[], ClusterMetadata]) -> list[Event]:
    """The events by which a function of `histories` makes its metadata."""
    events: list[Event] = []
    proper = histories.applied

    def applied(more: Sequence[Event], metadata: ClusterMetadata | None = None) -> ClusterMetadata:
        events.extend(more := list(more))
        return proper(more, metadata)

    histories.applied = applied  # type: ignore[assignment]
    try:
        history()
    finally:
        histories.applied = proper
    return events


def write_history(generation: int, events: Sequence[Event]) -> list[Path]:
    """A log of these events and one that asks for a snapshot, and the snapshot of it."""
    metadata, position, entries = ClusterMetadata.empty(), Position(), []
    for event in [*events, TakeSnapshot()]:
        completed = event.completed(metadata)
        entries.append(entry_of(completed, position))
        metadata, position = metadata.apply(completed, entries[-1].state_id), position_of(entries[-1])
    rows = ",\n".join(as_json(entry).rstrip() for entry in entries)
    written = [_put(history_file(generation), f"[\n{rows}\n]\n".encode())]
    written += [_put(snapshot_file(generation), encode_snapshot(metadata, position))]
    return [file for file in written if file is not None]


def write_missing() -> list[Path]:
    """Write the golden files that are missing: the newest entry of a kind, and the history of a new generation.

    What an earlier generation wrote is no longer known, so its entries are not written anew.
    """
    newest = dict(sorted(EVENTS))
    written = [
        _put(entry_file(kind, generation), as_json(entry_of(EVENTS[kind, generation])).encode())
        for kind, generation in newest.items()
    ]
    found = [file for file in written if file is not None]
    if GENERATION not in generations():
        ring = [CreateKeyspace(histories.ring_keyspace("sea", dc1=2)), *_join_under_way()]
        events = [*recorded(histories.ring_cluster), *ring]
        events += [EnableFeatures(SUPPORTED), AnnounceVersion(1, "0.1.0", SUPPORTED)]
        events += [PinTablets("id-flights", 4, (0, 3), True, "hot")]
        found += write_history(GENERATION, [*events, *_altered(events)])
    return found


def _join_under_way() -> list[Event]:
    """A node that is in the middle of its join."""
    metadata = histories.applied([CreateKeyspace(histories.ring_keyspace("sea", dc1=2))], histories.ring_cluster())
    node = histories.register(metadata, "m7", rack="r1")
    start = histories.start(histories.applied([node], metadata), "join-m7")
    return [node, start, *histories.steps("join-m7", histories.Step.START)]


def _altered(events: Sequence[Event]) -> list[Event]:
    """A table whose key is renamed and that loses a column, and then gets another one of the same name, and checks."""
    before = histories.applied(events)
    table = before.schema.tables["id-flights"]
    key, note = table.numbered
    renamed = msgspec.structs.replace(key, name="number")
    fresh = msgspec.structs.replace(note, column_id=3, stored_as="note#3", default="none", comment="new")
    loses = AlterColumns(table.table_id, table.full_name, table.version, (renamed,))
    version = histories.applied([loses], before).schema.tables[table.table_id].version
    checks = (Check("positive", "number >= 0", (1,)), Check("said", "note <> ''", (3,)))
    return [loses, AlterColumns(table.table_id, table.full_name, version, (fresh, renamed), checks)]


def _put(file: Path, data: bytes) -> Path | None:
    """Write a file unless it is there; the file when it was written."""
    if file.exists():
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


if __name__ == "__main__":
    for new in write_missing():
        print(f"written: {new.relative_to(FORMATS.parents[2])}")
