"""What pipelines may read while they live, looked at from outside: vacuum deletes none of it.

A read that was planned and is executed late would fail where a file of it is gone; seldom one is planned right then. So
whenever a vacuum has ended, the files of replica tables are looked at: those that were live when a pipeline began that
lives still, or have come since, are there; and so is each file that is live, whoever has committed it how late. It
costs the world no step, and no lease is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from epochlake.jobs.testing.replica_files import ReplicaFiles, Unreadable
from epochlake.jobs.testing.scheduler import Process
from epochlake.jobs.testing.world import World
from epochlake.placement.errors import EpochlakeError


class Kept:
    """Files that pipelines of a world may read. `must_stay`: whether nothing excuses it when a pipeline of that name
    lacks a file. `loses`: storage loses files by itself.
    """

    def __init__(self, world: World, must_stay: Callable[[str], bool], *, loses: bool) -> None:
        self.wrong: list[str] = []
        """The first file that was gone."""
        self._world = world
        self._known: dict[str, ReplicaFiles] = {}
        self._must_stay = must_stay
        self._loses = loses
        self._cleaning = 0
        self._living: dict[int, tuple[str, Process, dict[str, set[str] | None]]] = {}
        self._begun = 0

    @contextmanager
    def living(self, name: str, replicas: Iterable[str]) -> Iterator[None]:
        """A pipeline has begun, and lives until the end of the block. `replicas`: the replica tables that there are."""
        if not self._must_stay(name):
            yield
            return
        self._begun = number = self._begun + 1
        over: dict[str, set[str] | None] = {}
        for replica in self._there(replicas):
            try:
                over[replica.path] = replica.added() - replica.live_files()
            except Unreadable:
                over[replica.path] = None
        self._living[number] = (name, self._world.scheduler.current.process, over)
        try:
            yield
        finally:
            del self._living[number]

    @contextmanager
    def cleaning(self, replicas: Callable[[], Iterable[str]]) -> Iterator[None]:
        """A vacuum is at work until the end of the block; then what it has left of these is looked at."""
        self._cleaning += 1
        try:
            yield
        except EpochlakeError:
            self._look(self._there(replicas()), has_ended=False)
            raise
        else:
            self._look(self._there(replicas()), has_ended=self._cleaning == 1)
        finally:
            self._cleaning -= 1

    def _look(self, replicas: Iterable[ReplicaFiles], *, has_ended: bool) -> None:
        """`has_ended`: no vacuum is at work any more, nor has one given up."""
        living = [one for one in self._living.values() if one[1].alive]
        for replica in replicas:
            try:
                live = replica.live_files()
                gone = {path for path in replica.added() if self._is_gone(replica, path)}
            except Unreadable:
                continue
            for name, _, over in living:
                before = over.get(replica.path, set())
                if before is not None and (needed := gone - before):
                    self._say(f"{name} lives, and vacuum has deleted {replica.path}/{min(needed)} since it began")
            if self._loses:
                continue
            if lacking := gone & live:
                self._say(f"vacuum has deleted {replica.path}/{min(lacking)}, which is live")
            if has_ended and (aside := {path for path in live - gone if not self._is_there(replica, path)}):
                self._say(f"vacuum has left {replica.path}/{min(aside)} under another name, and it is live")

    def _there(self, replicas: Iterable[str]) -> list[ReplicaFiles]:
        known = [self._known.setdefault(path, ReplicaFiles(self._world, path)) for path in replicas]
        return [replica for replica in known if replica.is_there()]

    def _say(self, wrong: str) -> None:
        if not self.wrong:
            self.wrong.append(wrong)

    def _is_there(self, replica: ReplicaFiles, path: str) -> bool:
        return self._world.disk.status(f"{replica.path}/{path}") is not None

    def _is_gone(self, replica: ReplicaFiles, path: str) -> bool:
        """Whether nothing has its name any more, nor one that vacuum gives to what it may put back."""
        if self._is_there(replica, path):
            return False
        directory, _, name = f"{replica.path}/{path}".rpartition("/")
        with suppress(OSError):
            return not any(name in other for other in self._world.disk.names(directory))
        return True
