"""Hours of the day in which something may be done: `22:00-06:00`, in the local time of the machine."""

from __future__ import annotations

import re

import msgspec

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


class Hours(msgspec.Struct, frozen=True):
    """From minute `start` of a day until minute `end`, which may be of the next day; the same twice: always."""

    start: int = 0
    end: int = 0

    def contains(self, minute: int) -> bool:
        """Whether a minute of the day (0 to 1439) is among them."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


def parse_hours(text: str) -> Hours:
    """Hours as they are written; an empty text: all. Raises ValueError."""
    if not text:
        return Hours()
    found = _HOURS.fullmatch(text)
    if found is None:
        raise ValueError(f'hours are "{text}", expected two times of the day such as "22:00-06:00", or nothing')
    start_hour, start_minute, end_hour, end_minute = map(int, found.groups())
    return Hours(60 * start_hour + start_minute, 60 * end_hour + end_minute)
