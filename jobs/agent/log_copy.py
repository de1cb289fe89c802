"""An agent's own copy of the log: entries as lines of JSON in files of bounded size, only ever appended to.

A line counts when it is whole and continues the chain; a torn last line is what a kill or a full disk leaves, and is
cut off before anything is appended. This module knows lines, not entries: it is imported where memory is scarce. Who
appends has checked the chain (`following.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

import msgspec
from epochlake.jobs.agent.home import Home, HomeDamaged, sync_directory
from epochlake.placement.decoding import decodable

SEGMENT_BYTES = 4 * 1024 * 1024

_NAME = re.compile(r"entries-(\d{20})\.jsonl\Z")


class LineEnd(msgspec.Struct, frozen=True):
    """What the chain needs of an entry: the position after it. Its other columns are not decoded."""

    epoch: int
    state_id: str
    hash: str
    incarnation: int


_line = msgspec.json.Decoder(decodable(LineEnd))


class LogCopy:
    """The copy in one home. One process appends, others may read at the same time: they see whole lines only."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.directory = home.log

    def segments(self) -> list[Path]:
        """The files, in the order of their epochs."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return [self.directory / name for name in sorted(names) if _NAME.match(name)]

    def end(self) -> LineEnd | None:
        """The last entry; None when there is none. Raises HomeDamaged when the last whole line is none of ours."""
        for segment in reversed(self.segments()):
            whole = whole_lines(segment)
            if whole:
                return self._decoded(segment, whole[:-1].rpartition(b"\n")[2])
        return None

    def lines(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Epoch and line of each entry with a greater epoch than `after`, in order. Raises HomeDamaged."""
        segments = self.segments()
        for segment, following in zip(segments, [*segments[1:], None], strict=False):
            if following is not None and first_epoch(following) <= after + 1:
                continue
            for line in whole_lines(segment).splitlines(keepends=True):
                epoch = self._decoded(segment, line).epoch
                if epoch > after:
                    yield epoch, line

    def read(self, after: int, most_bytes: int) -> bytes:
        """Lines after an epoch, as many as fit, but one at least where there is one."""
        found = bytearray()
        for _, line in self.lines(after):
            if found and len(found) + len(line) > most_bytes:
                break
            found += line
        return bytes(found)

    def append(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Append lines, each with its epoch, and put them on the disk. Raises HomeUnwritable.

        When it raises some of them may be there: they are whole and in order, so the next one goes on after them.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            segment: Path | None = next(reversed(self.segments()), None)
            if segment is not None:
                _cut_torn_line(segment)
            for group_segment, group in self._grouped(segment, lines):
                new = not group_segment.exists()
                with open(group_segment, "ab") as file:
                    file.write(group)
                    file.flush()
                    os.fsync(file.fileno())
                if new:
                    sync_directory(self.directory)
        except OSError as error:
            raise self._home.unwritable(error) from error

    def put_aside_after(self, epoch: int) -> None:
        """Take what comes after an epoch out of the copy, and keep it under other names: it is damaged."""
        for segment in reversed(self.segments()):
            if first_epoch(segment) <= epoch:
                held = segment.read_bytes()
                lines = whole_lines(segment).splitlines(keepends=True)
                kept = b"".join(takewhile(lambda line: _is_up_to(bytes(line), epoch), lines))
                if kept != held:
                    segment.with_name(f"damaged-{segment.name}").write_bytes(held)
                    with open(segment, "r+b") as file:
                        file.truncate(len(kept))
                        os.fsync(file.fileno())
                break
            os.replace(segment, segment.with_name(f"damaged-{segment.name}"))
        sync_directory(self.directory)

    def _grouped(self, segment: Path | None, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[Path, bytes]]:
        size = segment.stat().st_size if segment is not None else SEGMENT_BYTES
        waiting = bytearray()
        for epoch, line in lines:
            if segment is None or size >= SEGMENT_BYTES:
                if segment is not None and waiting:
                    yield segment, bytes(waiting)
                segment, size = self.directory / f"entries-{epoch:020}.jsonl", 0
                waiting.clear()
            waiting += line
            size += len(line)
        if segment is not None and waiting:
            yield segment, bytes(waiting)

    def _decoded(self, segment: Path, line: bytes) -> LineEnd:
        try:
            return _line.decode(line)
        except msgspec.MsgspecError as error:
            raise HomeDamaged(
                f"{segment} holds a line that is no entry of a log", hint="Start the agent again: it looks at its copy"
            ) from error


def first_epoch(segment: Path) -> int:
    """The epoch that a file begins with, by its name."""
    match = _NAME.match(segment.name)
    assert match is not None
    return int(match[1])


def whole_lines(segment: Path) -> bytes:
    """What a file holds, without the torn line at its end."""
    held = segment.read_bytes()
    return held[: held.rfind(b"\n") + 1]


def _is_up_to(line: bytes, epoch: int) -> bool:
    try:
        return _line.decode(line).epoch <= epoch
    except msgspec.MsgspecError:
        return False


def _cut_torn_line(segment: Path) -> None:
    whole = len(whole_lines(segment))
    if whole != segment.stat().st_size:
        with open(segment, "r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
