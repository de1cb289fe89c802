"""Playing a scenario: each part is a process, and another one in its place when it was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.testing.coverage import pair
from epochlake.jobs.testing.nemesis import Nemesis
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario
from epochlake.jobs.testing.scheduler import Process
from epochlake.jobs.testing.world import World
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.ring.state import STEPS

RETRY_SECONDS = 0.5
OPENING_SECONDS = 0.002


class Player:
    """A part that is being played: by `process` now, and how far each of its threads is."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.process: Process | None = None
        self.generation = 0
        self.begun = [0] * len(part.threads)

    def left(self, thread: int) -> Iterator[tuple[int, Operation]]:
        """The operations that nobody has begun yet, each of them begun when it is told, with their numbers."""
        operations = self.part.threads[thread]
        while self.begun[thread] < len(operations):
            number = self.begun[thread]
            self.begun[thread] += 1
            yield number, operations[number]


class Playing:
    """A scenario in its world. `play` does all that a thread of a player has to do, with a cluster that the threads of
    its process share, and that is opened anew after each error that Epochlake says; other errors are defects, kept in
    `unexpected`. `alone`: what threads of these roles do, who open no cluster.
    """

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        play: Callable[[Playing, Player, int, Cluster], None],
        alone: Mapping[str, Callable[[Playing, Player, int], None]] = {},
    ) -> None:
        self.world = world
        self.scenario = scenario
        self.is_ending = False
        """Nothing goes wrong any more, and who has no end of his own comes to one."""
        self._peace_began = 0.0
        self.outcomes: Counter[str] = Counter()
        self.coverage: Counter[str] = Counter()
        """What was met: pairs of what went on at the same time, see coverage.py."""
        self.unexpected: list[str] = []
        self.at_peace: list[Callable[[], None]] = []
        """What is done, each in a process of its own and at the same time, when nothing goes wrong any more."""
        self.learned: list[Callable[[ClusterMetadata], None]] = []
        """Told of each epoch as soon as somebody has followed to it."""
        self._play = play
        self._alone = alone
        self._players = {part.name: Player(part) for part in scenario.parts}
        self._by_process: dict[Process, Player] = {}
        self._doing: dict[tuple[str, int], str] = {}
        self._seen: ClusterMetadata | None = None
        self._opened: dict[Process, _Opened] = {}
        self._opening: set[Process] = set()
        """Of these a thread opens the cluster, and the others wait for it."""
        self.nemesis = Nemesis(
            world, scenario.faults, victim=self._victim, replace=self._replace, struck=self._struck, stages=self._stages
        )

    def run(self) -> None:
        """From the beginning to the end, at which nobody does anything any more."""
        for player in self._players.values():
            self._start(player)
        self.nemesis.begin()
        self.world.scheduler.after(self.scenario.seconds, self._end, self.world.keeper)
        self.world.scheduler.run(lambda: self.is_ending and not self.world.is_busy)
        self.unexpected += [f"{actor.name}: {actor.error!r}" for actor in self.world.scheduler.failed]

    def doing(self, player: Player, thread: int, operation: Operation) -> None:
        """A thread of a player begins an operation."""
        self.world.scheduler.note(str(operation))
        self._doing[player.part.name, thread] = operation.kind
        others = [kind for key, kind in self._doing.items() if key != (player.part.name, thread)]
        self.coverage.update(pair(operation.kind, other) for other in sorted({*others, *self._stages()}))

    def done(self, player: Player, thread: int) -> None:
        """A thread of a player has ended its operation."""
        self._doing.pop((player.part.name, thread), None)

    def learn(self, metadata: ClusterMetadata) -> None:
        """Somebody has followed the log so far."""
        if self._seen is None or self._seen.fence < metadata.fence:
            self._seen = metadata
            for tell in self.learned:
                tell(metadata)

    def _struck(self, fault: Fault) -> None:
        met = {*self._doing.values(), *self._stages(), "anything", *([fault.when] if fault.when else [])}
        self.coverage.update(pair(fault.kind, other) for other in sorted(met))

    def _stages(self) -> set[str]:
        """Where operations of the topology are now, as far as somebody here knows."""
        metadata = self._seen
        if metadata is None:
            return set()
        tablets = {f"tablet {transition.stage.value}" for transition in metadata.tablets.transitions.values()}
        steps = {
            (one.kind.value, STEPS[min(one.next_step, len(STEPS) - 1)]) for one in metadata.rings.operations.values()
        }
        return tablets | {f"{kind} before {step.value}" for kind, step in steps}

    @property
    def seconds_of_peace(self) -> float:
        """How long ago the last fault was over; 0 before that."""
        return self.world.scheduler.now - self._peace_began if self.is_ending else 0.0

    def _end(self) -> None:
        self.is_ending = True
        self._peace_began = self.world.scheduler.now
        for number, do in enumerate(self.at_peace):
            self.world.run(self.world.process(f"at peace {number}"), do)
        self.nemesis.stop()

    def _victim(self, name: str) -> Process | None:
        player = self._players.get(name)
        return None if player is None else player.process

    def _replace(self, dead: Process) -> None:
        player = self._by_process.get(dead)
        if player is not None and not self.is_ending:
            self._start(player)

    def _start(self, player: Player) -> None:
        name = player.part.name + (f"'{player.generation}" if player.generation else "")
        player.generation += 1
        process = player.process = self.world.process(name, player.part.skew)
        self._by_process[process] = player
        if player.part.blind and not self.is_ending:
            self.world.troubles.unreachable[process] = {*player.part.blind}
        for thread in range(len(player.part.threads)):
            self.world.run(process, lambda thread=thread: self._work(process, player, thread), f"thread {thread}")  # type: ignore[misc]

    def _work(self, process: Process, player: Player, thread: int) -> None:
        while True:
            try:
                if player.part.role in self._alone:
                    return self._alone[player.part.role](self, player, thread)
                with self._cluster_of(process) as cluster:
                    return self._play(self, player, thread, cluster)
            except EpochlakeError as error:
                self.done(player, thread)
                self.outcomes[f"{player.part.role}: {type(error).__name__}"] += 1
                self.world.scheduler.note(f"error: {type(error).__name__}: {error}")
                self.world.scheduler.sleep(RETRY_SECONDS)
            except Exception as error:
                self.unexpected.append(f"{process.name}: {error!r}")
                raise

    def _open(self, process: Process) -> None:
        """Open the cluster for all threads of a process."""
        self._opening.add(process)
        try:
            cluster = self.world.cluster(process)
        finally:
            self._opening.discard(process)
        cluster.follower.add_listener(_Seen(self))
        if self._seen is not None and self._seen.identity.incarnation < cluster.metadata.identity.incarnation:
            self.learn(cluster.metadata)  # what was known is lost
        self._opened[process] = _Opened(cluster)

    @contextmanager
    def _cluster_of(self, process: Process) -> Iterator[Cluster]:
        """The cluster as its threads have opened it; a new one where there is none, or one of them has met an error."""
        while (opened := self._opened.get(process)) is None or opened.is_given_up:
            if process not in self._opening:
                self._open(process)
            else:
                self.world.scheduler.sleep(OPENING_SECONDS)
        opened.users += 1
        try:
            yield opened.cluster
        except EpochlakeError:
            opened.is_given_up = True
            raise
        finally:
            opened.users -= 1
            if not opened.users:
                opened.is_given_up = True
                opened.cluster.close()


class _Opened:
    """A cluster that threads of a process have opened, and how many of them use it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.users = 0
        self.is_given_up = False


class _Seen:
    """Knows the newest metadata that anybody of a playing has followed to."""

    def __init__(self, playing: Playing) -> None:
        self._playing = playing

    def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
        """Nothing."""

    def after(self, entry: Entry, metadata: ClusterMetadata) -> None:
        self._playing.learn(metadata)
