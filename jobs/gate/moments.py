"""Moments that a read can be asked to go back to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from epochlake.placement.errors import InvalidRequest

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _BEGINNING) // timedelta(microseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _BEGINNING) // timedelta(microseconds=1)
_HINT = "Say the zone: 2013-01-01T10:00:00Z, or datetime(2013, 1, 1, 10, tzinfo=timezone.utc)"


def micros_of(moment: object) -> int:
    """A moment in microseconds since 1970: a `datetime` with a zone, or ISO 8601 with one. Raises InvalidRequest.

    What has no zone is refused: which hour is meant would depend on the machine that reads it.
    """
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment.strip())
        except ValueError:
            raise InvalidRequest(f"the time {moment!r} cannot be understood", hint=_HINT) from None
    if not isinstance(moment, datetime):
        raise InvalidRequest(f"{moment!r} is no time", hint=f"Give a text in ISO 8601 or a datetime. {_HINT}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidRequest(f"the time {moment.isoformat(' ')} has no zone", hint=_HINT)
    micros = (moment - _BEGINNING) // timedelta(microseconds=1)
    if not _FIRST <= micros <= _LAST:
        raise InvalidRequest(f"the time {moment.isoformat(' ')} is not within the years 1 to 9999 of UTC", hint=_HINT)
    return micros


def moment_of(micros: int) -> datetime:
    """The moment of microseconds since 1970, in UTC."""
    return _BEGINNING + timedelta(microseconds=micros)


def words_of_moment(micros: int) -> str:
    """ISO 8601 in UTC, as `micros_of` reads it."""
    return moment_of(micros).isoformat().replace("+00:00", "Z")
