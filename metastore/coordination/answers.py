"""Answers: how the owner of a batch of proposals learns from its claimer what has become of them.

Each process has a mailbox, an ephemeral znode of its own, and names it in its batches. Who has appended
somebody's proposals writes the epochs into the mailbox; a watch brings the owner to read it, and it needs neither the
lock nor the log. Only successes are told: they are in the log for good, whoever tells them. An answer that is lost or
written over costs the owner its turn in the line, and nothing else: then the log tells.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from epochlake.metastore.coordination.client import NO_ANSWER, Coordination
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

ANSWERS = "answers"


class Answers:
    """The mailbox of one process, and the way to those of others."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._name = uuid.uuid4().hex
        self._session: int | None = None
        self._lock = threading.Lock()
        self._told: dict[str, dict[str, int]] = {}
        self.arrived: Callable[[], None] = lambda: None
        """Called when there is something to take: in a thread of kazoo, so it must only set flags."""

    def open(self, timeout: float) -> str:
        """The name of the mailbox, which is there now in the present session. Raises CoordinationUnavailable."""
        coordination, session = self._coordination, self._coordination.session_id
        if session is None or session != self._session:
            directory = coordination.ensure(ANSWERS, timeout)
            path = f"{directory}/{self._name}"
            try:
                create = coordination.client.create_async(path, b"", ephemeral=True)
                coordination.answer(f"create {path}", create, timeout)
            except NodeExistsError:
                pass
            except NoNodeError:
                coordination.forget(directory)
                return self._name
            self._session = session
            self._look()
        return self._name

    def take(self) -> dict[str, dict[str, int]]:
        """By the path of a batch, the epochs of its requests that others have committed, told since the last call."""
        with self._lock:
            taken, self._told = self._told, {}
        return taken

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return bool(self._told)

    def send(self, batch: str, epochs: dict[str, int]) -> None:
        """Tell the owner of the batch at this path. Neither waits nor raises; one of an earlier version has none."""
        mailbox = batch.rpartition("/")[2].split("-")[1:-1]
        if mailbox and epochs:
            path = f"{self._coordination.path(ANSWERS)}/{mailbox[0]}"
            self._coordination.client.set_async(path, msgspec.msgpack.encode((batch, epochs)))

    def _look(self) -> None:
        path = f"{self._coordination.path(ANSWERS)}/{self._name}"
        self._coordination.client.get_async(path, watch=self._changed).rawlink(self._read)

    def _changed(self, event: Any) -> None:
        if event.type == "CHANGED":
            self._look()

    def _read(self, result: Any) -> None:
        try:
            data, _ = result.get_nowait()
            if not data:
                return
            batch, epochs = msgspec.msgpack.decode(data, type=tuple[str, dict[str, int]])
        except (KazooException, *NO_ANSWER):
            self._session = None  # it is opened again with the next batch
            return
        except msgspec.MsgspecError:
            return
        with self._lock:
            self._told[batch] = epochs
        self.arrived()
