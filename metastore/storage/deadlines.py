"""Deadlines of storage: no access to a volume lasts longer than it may, whatever the file system below does.

A thread that hangs in the file system cannot be stopped, only left behind. So each access to a watched
place runs in a thread of its own, and its caller waits for it until the deadline, counted from its last sign of
progress. Then the place is *late*, which is one way of being unreachable (StorageLate), and the thread is left behind:
counted, shown, and never waited for, not even when the process ends. A place with a thread left behind is not asked
again at once; one call asks it after a while, and all do as soon as a thread comes back
(docs/decisions/024-deadlines.md).

What is known of places belongs to a storage (`Deadlines`). The threads belong to the process: how many may be left
behind, and which access a thread is in, is the same for all storages of it.

A left-behind access may still do its work when the file system comes back. It is the same as an access of a process
that was paused, and nothing new has to guard against it: fences, sessions and conditional commits do.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import msgspec
from epochlake.metastore import threads
from epochlake.metastore.storage.failures import StorageLate
from epochlake.metastore.storage.places import absolute

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_SECONDS = 30.0
"""How long an access may go without a sign of progress, unless the configuration says otherwise. It is above what disks
need to spin up and file servers for a stall, and far below what people wait for."""

MOST_LEFT_BEHIND = 128
"""Threads that a process leaves behind at most. With so many, late places are not asked again before one comes back."""

SLICE_SECONDS = 1.0

LONGEST_PAUSE_SECONDS = 900.0
"""A late place is asked again after the deadline, then after twice as long, and so on up to this."""


class LatePlace(msgspec.Struct, frozen=True):
    """A place that does not answer: `hanging` threads were left behind there, the first one `seconds` ago."""

    place: str
    hanging: int
    seconds: float


class _Process:
    """What all deadlines of a process share: the count of the threads that hang, and the lock for what is counted."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hanging = 0
        self.deadlines: WeakSet[Deadlines] = WeakSet()

    def forget_threads(self) -> None:
        """In a forked process: the threads are those of the parent."""
        self.lock = threading.Lock()
        self.hanging = 0
        for deadlines in list(self.deadlines):
            deadlines.forget_threads()


_process = _Process()
_current = threading.local()


class _Place:
    """What is known of a watched place.

    It is `late` from a missed deadline until a thread comes back, or one access that was let through has ended. `pause`
    is how long it is left alone; it only starts anew when a thread came back: what answers from a cache proves little.
    """

    def __init__(self, name: str, deadlines: Deadlines) -> None:
        self.name = name
        self.deadlines = deadlines
        self.late = False
        self.late_since = 0.0
        self.hanging = 0
        self.pause = 0.0
        self.ask_again_at = 0.0


class _Access:
    """One access: what runs, where it is at, and how often it said that it goes on."""

    def __init__(self, place: _Place, asked: str, call: Callable[[], Any]) -> None:
        self.place = place
        self.asked = asked
        self.call = call
        self.signs = 0
        self.left_behind_at: _Place | None = None
        self.ended = False
        # Released once, by the thread that has ended it: half the price of an event, and each access pays it.
        self.running = threading.Lock()
        self.running.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        _current.access = self
        try:
            self.result = self.call()
        except BaseException as error:  # it is raised again where the access was asked for
            self.error = error
        _current.access = None
        _ended(self)


class Deadlines:
    """The places of one storage that are watched, and `seconds`, which an access may go without progress there."""

    def __init__(self, seconds: float = DEADLINE_SECONDS) -> None:
        self.seconds = seconds
        self._places: dict[str, _Place] = {}
        _process.deadlines.add(self)

    def watch(self, uri: str) -> None:
        """From now on every access to this place, and to what lies below it, has the deadline."""
        place = _normal(uri)
        if place not in self._places:
            with _process.lock:
                self._places.setdefault(place, _Place(place, self))

    def within(self, uri: str, asked: str, call: Callable[[], T]) -> T:
        """`call()`, which touches `uri` and may hang there; `asked` says in the infinitive what it is for ("read …").

        In this thread when nobody watches the place. Raises StorageLate when the deadline is over, or the place was
        late a short while ago; else what `call` raises.
        """
        place = self._watched(uri)
        if place is None:
            return call()
        outer: _Access | None = getattr(_current, "access", None)
        if outer is not None:
            return _inside(outer, place, asked, call)
        asks_again = _admit(place, asked)
        access = _Access(place, asked, call)
        threads.begin(access.run)
        _wait(access, asks_again)
        if asks_again:
            place.late = False
        if access.error is not None:
            try:
                raise access.error
            finally:
                access.error = None  # no cycle over the traceback, which would keep what the caller held
        result: T = access.result
        return result

    def late_places(self) -> list[LatePlace]:
        """The places that do not answer this storage now, by name."""
        now = time.monotonic()
        with _process.lock:
            return [
                LatePlace(place.name, place.hanging, now - place.late_since)
                for _, place in sorted(self._places.items())
                if place.late
            ]

    def patience(self, place: str) -> float:
        """How long an access to a place may go without progress, in seconds."""
        return self.seconds

    def forget_threads(self) -> None:
        """No thread hangs at any place: they were those of the process that this one was forked from."""
        for place in self._places.values():
            place.hanging = 0
            place.late, place.pause = False, 0.0

    def _watched(self, uri: str) -> _Place | None:
        """The watched place that a URI is at or below."""
        name = _normal(uri)
        while name:
            if (place := self._places.get(name)) is not None:
                return place
            name = name.rpartition("/")[0]
        return None


def progress() -> None:
    """Say that an access goes on: its deadline counts from now. Raises StorageLate when nobody waits for it now."""
    access: _Access | None = getattr(_current, "access", None)
    if access is not None:
        access.signs += 1
        if access.left_behind_at is not None:
            raise StorageLate(f"nobody waits any more for: {access.asked}")


def left_behind() -> int:
    """How many threads of this process hang in storage."""
    with _process.lock:
        return _process.hanging


def _inside(access: _Access, place: _Place, asked: str, call: Callable[[], T]) -> T:
    """A part of an access. It may be at another place: that one is late when it hangs there."""
    before = access.place
    asks_again = place is not before and _admit(place, asked)
    progress()
    access.place = place
    try:
        result = call()
        if asks_again:
            place.late = False
        return result
    finally:
        access.place = before
        access.signs += 1


def _wait(access: _Access, asks_again: bool) -> None:
    """Until the access has ended. Raises StorageLate when it makes no progress for the deadline.

    Waited in slices, of which each counts as one: a process that was paused itself gives its threads their time.
    """
    signs, waited = access.signs, 0.0
    while (left := access.place.deadlines.patience(access.place.name) - waited) > 0:
        piece = min(SLICE_SECONDS, left)
        if access.running.acquire(timeout=piece):
            return
        waited += piece
        if access.signs != signs:
            signs, waited = access.signs, 0.0
    with _process.lock:
        if access.ended:
            return
        place = access.place
        seconds = place.deadlines.seconds
        access.left_behind_at = place
        place.hanging += 1
        _process.hanging += 1
        now = time.monotonic()
        if newly := not place.late:
            place.late, place.late_since = True, now - waited
        if newly or asks_again:
            place.pause = min(2 * place.pause or seconds, LONGEST_PAUSE_SECONDS)
        place.ask_again_at = now + place.pause
    if newly:
        logger.warning("%s does not answer: a thread is left behind that should %s", place.name, access.asked)
    raise StorageLate(
        f"cannot {access.asked}: {place.name} has not answered for {seconds:g} seconds, which is what "
        f"[storage] deadline_seconds allows",
        hint="Check the disk or mount",
    )


def _ended(access: _Access) -> None:
    with _process.lock:
        access.ended = True
        access.running.release()
        place = access.left_behind_at
        if place is None:
            return
        place.hanging -= 1
        _process.hanging -= 1
        answers_again = place.late
        place.late, place.pause = False, 0.0
    if answers_again:
        logger.warning("%s answers again", place.name)


def _admit(place: _Place, asked: str) -> bool:
    """Let an access through; whether it is the one that asks a late place again. Raises StorageLate for the others."""
    if not place.late:
        return False
    with _process.lock:
        if not place.late:
            return False
        now = time.monotonic()
        too_many = _process.hanging >= MOST_LEFT_BEHIND
        if now >= place.ask_again_at and not too_many:
            place.ask_again_at = now + LONGEST_PAUSE_SECONDS  # until this one has ended or is late as well
            return True
        again = (
            "It is asked again when a thread comes back, or by a new process"
            if too_many
            else f"It is asked again in {place.ask_again_at - now:.0f} seconds"
        )
        raise StorageLate(
            f"cannot {asked}: {place.name} has not answered for {now - place.late_since:.0f} seconds "
            f"({place.hanging} threads hang there). {again}"
        )


def _normal(uri: str) -> str:
    if "://" not in uri:
        return absolute(uri)
    parts = urlsplit(uri)
    return absolute(unquote(parts.path)) if parts.scheme == "file" else uri.rstrip("/")


with suppress(AttributeError):
    os.register_at_fork(after_in_child=_process.forget_threads)
