"""What happens in a history, as a value: who does what, and what is done to them. With its seed it is one course.

A scenario is drawn from a seed (log_drawing.py, row_drawing.py), made shorter where its history fails (shrinking.py),
and kept as JSON where it has become a test.
"""

from __future__ import annotations

import msgspec
from epochlake.placement.decoding import decodable


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that an actor does, `wait` seconds after the one before.

    What the rest means depends on `kind`: `name` is a request id, a batch or a node; `number` a count or a place in a
    list; `level` a consistency level; `keys` rows; `seconds` how long the call may take, or
    of rows that expire, how long they live from now; `on`, of a commit, that nobody
    looks at the metadata after it.
    """

    kind: str
    wait: float = 0.0
    name: str = ""
    keys: tuple[int, ...] = ()
    level: str = ""
    number: int = 0
    on: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        words = [self.kind, self.name, self.level, f"keys {list(self.keys)}" if self.keys else ""]
        return " ".join(word for word in words if word)


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One actor: a process with a thread for each list of operations. `skew`: how far its clock is off, in seconds.

    `blind`: places that its machine cannot reach, while others can, until nothing goes wrong any more.
    `role` is what it is: "commits", "pipeline", "operator", "upkeep" and "follower" have operations, a "coordinator"
    has none. One of the role "members" changes the log members, and opens no cluster for it.
    """

    name: str
    role: str
    threads: tuple[tuple[Operation, ...], ...] = ((),)
    skew: float = 0.0
    blind: tuple[str, ...] = ()


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is done to the world, `at` seconds after its beginning: to the process of `victim`, or to `place`.

    `seconds` is how long it lasts, `number` how much it is; of a flipped bit, whether each file of the place has one
    (2: for a while, and before its footer; 3: in it), and of lost storage, whether its volume is known by its marker
    still.
    With `when` it waits from then on for the `nth` time that somebody comes to that moment ("zookeeper delete", "log
    append, done"), and strikes right there: the victim, or who has come to it if there is none. With `during` only
    moments count while something is known to be so far ("tablet cleanup", "leave before mid"). With `by` it waits for
    that one to come there, whoever the victim is.
    """

    kind: str
    at: float
    victim: str = ""
    place: str = ""
    seconds: float = 0.0
    number: float = 0.0
    when: str = ""
    nth: int = 1
    during: str = ""
    by: str = ""

    def __str__(self) -> str:
        words = (self.kind, self.victim, self.place, self.when and f"at {self.when}", self.during)
        return " ".join(word for word in words if word)


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the cluster is set up. `delta`: with real Delta tables, in a folder; else all of it is in memory.

    `tablets` is 0 for a table on the ring. `snapshot_every` and `compact_every` are epochs and files of the log.
    `latency`: how slow disks are, beside the network. `racks`: one for each node. `clock_margin`: by how much vacuum
    takes clocks to be apart, in seconds. `session`: how long a session of ZooKeeper outlives its process, in seconds.
    `log_checkpoints`: after how many commits the log has a checkpoint. `deadline`: of storage, in seconds.
    `barrier`: after how many seconds barriers relax; `attempts`: how often a pipeline tries what fails.
    `changes`: "" where the table's changes are not kept, "kept", "short" where they are dropped soon, or "held" where
    each is dropped as soon as all of its followers have told that they have dealt with it.
    `members`: the directories by number that are the first log members; (): commits count when the root has them.
    `ttl`: for how many seconds rows of the table live at first, from the moment in them; 0 for ever.
    `age`: how old the table is when the history begins, in seconds.
    `shared_file_bytes`: up to which size neighbouring ranges share files, as the configuration says; 0: they do not.
    """

    delta: bool = False
    replication: int = 3
    tablets: int = 0
    snapshot_every: int = 0
    compact_every: int = 32
    latency: float = 1.0
    append_only: bool = False
    racks: tuple[str, ...] = ("r1", "r2", "r3", "r1")
    clock_margin: float = 300.0
    session: float = 10.0
    log_checkpoints: int = 50
    deadline: float = 30.0
    changes: str = ""
    barrier: float = 3600.0
    attempts: int = 3
    members: tuple[int, ...] = ()
    ttl: int = 0
    age: float = 0.0
    shared_file_bytes: int = 0


class Scenario(msgspec.Struct, frozen=True, omit_defaults=True):
    """One history before it is run. `kind` is "log" or "rows"; after `seconds` nothing goes wrong any more."""

    kind: str
    seed: int
    seconds: float
    settings: Settings = Settings()
    parts: tuple[Part, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def size(self) -> int:
        """How much happens in it: what shrinking makes less."""
        return len(self.parts) + len(self.faults) + sum(len(thread) for part in self.parts for thread in part.threads)


def encoded(scenario: Scenario) -> bytes:
    """As JSON, to be kept."""
    return msgspec.json.format(msgspec.json.encode(scenario), indent=1) + b"\n"


def decoded(data: bytes) -> Scenario:
    """Raises msgspec.ValidationError."""
    return msgspec.json.decode(data, type=decodable(Scenario))
