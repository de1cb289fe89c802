"""One row of the epoch log: what it holds, how an event becomes its payload, and the chain that its hash continues.

The hash covers every other column, in the order of the table, each written with its length, so that no two different
rows have the same bytes. The payload is canonical JSON (sorted keys): the same event always has the same hash.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import msgspec
from epochlake.metastore.errors import HashMismatch, LogGap, UnknownFormat
from epochlake.metastore.metadata.events import KINDS, Event
from epochlake.placement.decoding import decodable

FORMAT = 1
"""The version of the payload's format that is written. An unknown one is refused, never guessed."""

GENESIS = "0" * 64
"""The previous hash of the first entry."""

ASKED = "_asked"
"""The key in a payload under which the submitter's own words are; no field of an event is called so."""

_encoder = msgspec.json.Encoder(order="sorted")


class Entry(msgspec.Struct, frozen=True):
    """A row of the log. `committed_at` is microseconds since 1970 UTC; `attachment` bulk arrays or None."""

    epoch: int
    event: str
    payload: str
    attachment: bytes | None
    request_id: str
    state_id: str
    previous_state_id: str
    author: str
    reason: str
    committed_at: int
    incarnation: int
    format: int
    previous_hash: str
    hash: str

    def decode(self) -> Event:
        """The event of this entry."""
        return decode_event(self.event, self.payload, self.attachment, epoch=self.epoch)

    @property
    def asked(self) -> str:
        """What the submitter asked for, in words (see `encode_event`); empty when it did not say."""
        return words_in(self.payload)


def words_in(payload: str) -> str:
    """What the submitter asked for, in words, from the payload of an event; empty when it did not say."""
    if ASKED not in payload:
        return ""
    found = msgspec.json.decode(payload, type=dict[str, Any]).get(ASKED, "")
    return found if isinstance(found, str) else ""


class EncodedEvent(msgspec.Struct, frozen=True):
    event: str
    payload: str
    attachment: bytes | None


def encode_event(event: Event, asked: str = "") -> EncodedEvent:
    """Kind, canonical JSON and attachment. An `attachment` field of an event never becomes part of the JSON.

    One without bytes is no attachment: the event has its default then. `asked`: what the submitter asked for, in words.
    It is kept beside the event's fields, so that a request id that comes again is compared with what it was used for;
    no event is decided by it.
    """
    attachment = getattr(event, "attachment", b"") or None
    given = {name: getattr(event, name) for name in event.__struct_fields__ if name != "attachment"}
    fields = {name: value for name, value in given.items() if value is not msgspec.UNSET}
    if asked:
        fields[ASKED] = asked
    return EncodedEvent(event.kind(), _encoder.encode(fields).decode(), attachment)


def decode_event(kind: str, payload: str, attachment: bytes | None, *, epoch: int) -> Event:
    """The event that `encode_event` was given; `epoch` is only for the error's message."""
    if kind not in KINDS:
        raise UnknownFormat(
            f"epoch {epoch} holds an event {kind!r} that this version does not know", hint="Use a newer one"
        )
    try:
        if ASKED in payload:
            own = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
            payload = _encoder.encode({name: value for name, value in own.items() if name != ASKED}).decode()
        if attachment is None:
            return _decoder(kind).decode(payload)
        fields = msgspec.json.decode(payload, type=dict[str, Any])
        fields["attachment"] = attachment
        return msgspec.convert(fields, decodable(KINDS[kind]))
    except msgspec.MsgspecError as error:
        raise UnknownFormat(f"epoch {epoch}: the payload of {kind} cannot be read: {error}") from error


@cache
def _decoder(kind: str) -> msgspec.json.Decoder[Event]:
    return msgspec.json.Decoder(decodable(KINDS[kind]))


def entry_hash(entry: Entry) -> str:
    """SHA-256 over every column but the hash itself."""
    digest = hashlib.sha256()
    attachment = b"" if entry.attachment is None else entry.attachment
    head = (
        f"{entry.epoch}|{len(entry.event)}|{entry.event}|{len(entry.payload)}|"
        f"{'-' if entry.attachment is None else len(attachment)}|"
        f"{len(entry.request_id)}|{entry.request_id}|{len(entry.state_id)}|{entry.state_id}|"
        f"{len(entry.previous_state_id)}|{entry.previous_state_id}|"
        f"{len(entry.author)}|{entry.author}|{len(entry.reason)}|{entry.reason}|"
        f"{entry.committed_at}|{entry.incarnation}|{entry.format}|{len(entry.previous_hash)}|{entry.previous_hash}|"
    )
    digest.update(head.encode())
    digest.update(entry.payload.encode())
    digest.update(attachment)
    return digest.hexdigest()


def seal(
    encoded: EncodedEvent,
    *,
    epoch: int,
    request_id: str,
    state_id: str,
    previous_state_id: str,
    author: str,
    reason: str,
    committed_at: int,
    incarnation: int,
    previous_hash: str,
) -> Entry:
    """The entry of an event, its hash computed."""
    unsealed = Entry(
        epoch=epoch,
        event=encoded.event,
        payload=encoded.payload,
        attachment=encoded.attachment,
        request_id=request_id,
        state_id=state_id,
        previous_state_id=previous_state_id,
        author=author,
        reason=reason,
        committed_at=committed_at,
        incarnation=incarnation,
        format=FORMAT,
        previous_hash=previous_hash,
        hash="",
    )
    return msgspec.structs.replace(unsealed, hash=entry_hash(unsealed))


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a log, or of a prefix of it: what the next entry has to continue."""

    epoch: int = 0
    state_id: str = ""
    hash: str = GENESIS
    incarnation: int = 1


def position_of(entry: Entry) -> Position:
    """The end of a log whose last entry is `entry`."""
    return Position(entry.epoch, entry.state_id, entry.hash, entry.incarnation)


def verify_next(position: Position, entry: Entry) -> Position:
    """Check that `entry` continues the log at `position`; the position after it.

    Raises LogGap, UnknownFormat or HashMismatch, each naming the epoch.
    """
    if entry.epoch != position.epoch + 1:
        raise LogGap(
            f"the log goes from epoch {position.epoch} to {entry.epoch}: epoch {position.epoch + 1} is missing"
        )
    if entry.format != FORMAT:
        raise UnknownFormat(
            f"epoch {entry.epoch} is written in format {entry.format}, this version knows {FORMAT}",
            hint="Use a newer version",
        )
    if entry.previous_hash != position.hash or entry.previous_state_id != position.state_id:
        raise HashMismatch(
            f"epoch {entry.epoch} does not continue epoch {position.epoch}: the log was altered, or two were mixed"
        )
    if entry_hash(entry) != entry.hash:
        raise HashMismatch(f"epoch {entry.epoch} is not what its hash says: the entry was altered")
    if entry.state_id <= position.state_id:
        raise HashMismatch(f"epoch {entry.epoch}: its state id is not greater than that of epoch {position.epoch}")
    return position_of(entry)
