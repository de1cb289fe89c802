"""How many acknowledgements are enough: consistency levels of requests, and majorities of progress barriers.

Two rules carry the safety of everything above. A request counts its acknowledgements in **each** replica set that its
stage writes to. A step is acknowledged when so many of the old replicas and so many of the new ones are fenced at its
epoch that no quorum of either is left without a fenced one (docs/decisions/003-barriers.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum

from epochlake.placement.errors import InvalidRequest

DatacenterOf = Callable[[int], str]


def spelt_alike(text: str) -> str:
    """A level's name as it is written here, from any case, with - or blanks for _: for people, in every place."""
    return "_".join(text.upper().replace("-", " ").replace("_", " ").split())


class ConsistencyLevel(StrEnum):
    """How many replicas of each tablet or range must answer a read, or acknowledge a write; spelt in any case.

    ONE, TWO, ALL: so many, or all. QUORUM: more than half. LOCAL_QUORUM: more than half in the datacenter of the
    pipeline. EACH_QUORUM: more than half in each datacenter. A write is counted in the old and in the new replicas of
    what moves.
    """

    ONE = "ONE"
    TWO = "TWO"
    QUORUM = "QUORUM"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    EACH_QUORUM = "EACH_QUORUM"
    ALL = "ALL"

    @classmethod
    def parse(cls, text: str) -> ConsistencyLevel:
        """Read a level in any case; an unknown one is an InvalidRequest that lists the known ones."""
        try:
            return cls(spelt_alike(text))
        except (ValueError, AttributeError, TypeError):
            raise InvalidRequest(
                f"unknown consistency level {text!r}", hint=f"Use one of {', '.join(level.value for level in cls)}"
            ) from None


def majority(count: int) -> int:
    """The least number of `count` replicas of which any two sets overlap."""
    return count // 2 + 1


def require_local(level: ConsistencyLevel, local: str | None) -> None:
    """Raises InvalidRequest for a level that counts in the datacenter of the request where none is named."""
    if level is ConsistencyLevel.LOCAL_QUORUM and local is None:
        raise _said_nowhere()


def _said_nowhere() -> InvalidRequest:
    return InvalidRequest(
        "LOCAL_QUORUM counts in one datacenter, and it was not said in which", hint="Say so with datacenter=…"
    )


def required(
    level: ConsistencyLevel, replicas: Sequence[int], datacenter_of: DatacenterOf, local: str | None = None
) -> dict[str | None, int]:
    """How many of `replicas` must acknowledge: per datacenter, or under None for all of them together.

    TWO of a table with a single replica cannot be reached and is left so: the level is a promise, not a wish.
    LOCAL_QUORUM needs `local`, the datacenter that the request runs in.
    """
    match level:
        case ConsistencyLevel.ONE:
            return {None: 1}
        case ConsistencyLevel.TWO:
            return {None: 2}
        case ConsistencyLevel.QUORUM:
            return {None: majority(len(replicas))}
        case ConsistencyLevel.ALL:
            return {None: len(replicas)}
        case ConsistencyLevel.EACH_QUORUM:
            return {dc: majority(n) for dc, n in Counter(map(datacenter_of, replicas)).items()}
        case ConsistencyLevel.LOCAL_QUORUM:
            if local is None:
                raise _said_nowhere()
            here = sum(datacenter_of(replica) == local for replica in replicas)
            if not here:
                raise InvalidRequest(
                    f"LOCAL_QUORUM in datacenter {local!r}: the table has no replica there, or not all of it has one",
                    hint="Name a datacenter of its keyspace's replication, ask another level, or wait where the "
                    "replication is being altered",
                )
            return {local: majority(here)}


def readable(
    level: ConsistencyLevel,
    replicas: Sequence[int],
    unread: Collection[int],
    datacenter_of: DatacenterOf,
    local: str | None = None,
) -> bool:
    """Whether a read of `replicas` can keep what `level` promises, while `unread` are replicas that serve no reads.

    These are being rebuilt. Every QUORUM, and every one of a datacenter in which others are left, is met without them.
    ALL is not, nor is a level that counts in a datacenter where they are the only ones.
    """
    elsewhere = {datacenter_of(replica) for replica in unread} - {datacenter_of(replica) for replica in replicas}
    match level:
        case ConsistencyLevel.ALL:
            return not unread
        case ConsistencyLevel.EACH_QUORUM:
            return not elsewhere
        case ConsistencyLevel.LOCAL_QUORUM:
            return local not in elsewhere
    return True


def missing(
    level: ConsistencyLevel,
    replicas: Sequence[int],
    acknowledged: Collection[int],
    datacenter_of: DatacenterOf,
    local: str | None = None,
) -> dict[str | None, int]:
    """How many acknowledgements are still missing, per datacenter (None: anywhere); empty when the level is reached.

    Replicas that are declared lost stay among `replicas` and are never in `acknowledged`: a level asks for the same
    number as before, of those that are left.
    """
    have = Counter(datacenter_of(replica) for replica in replicas if replica in acknowledged)
    total = sum(have.values())
    short = {}
    for datacenter, need in required(level, replicas, datacenter_of, local).items():
        got = total if datacenter is None else have[datacenter]
        if got < need:
            short[datacenter] = need - got
    return short


def is_satisfied(
    level: ConsistencyLevel,
    replica_sets: Sequence[Sequence[int]],
    acknowledged: Collection[int],
    datacenter_of: DatacenterOf,
    local: str | None = None,
) -> bool:
    """Whether `acknowledged` reaches the level in each of the replica sets."""
    return not any(missing(level, replicas, acknowledged, datacenter_of, local) for replicas in replica_sets)


class BarrierLevel(StrEnum):
    """What a progress barrier waits for, weakest first. `QUORUM` is what no barrier goes below.

    QUORUM: of the old and of the new replicas so many that no quorum is left without one of them.
    EACH_QUORUM: the same within every datacenter, which LOCAL_QUORUM and EACH_QUORUM pipelines need.
    ALL: every old and every new replica.
    """

    QUORUM = "QUORUM"
    EACH_QUORUM = "EACH_QUORUM"
    ALL = "ALL"


def blocking(count: int) -> int:
    """The least number of `count` replicas that meets every majority of them.

    For an odd count it is the majority itself; for an even one it is one less, which lets a table with two replicas
    replace a dead one: a quorum of two replicas is both of them, so fencing the live one stops every stale quorum.
    """
    return count - majority(count) + 1 if count else 0


def barrier_passed(
    level: BarrierLevel,
    old: Sequence[int],
    new: Sequence[int],
    fenced: Collection[int],
    datacenter_of: DatacenterOf,
    lost: Collection[int] = (),
) -> bool:
    """Whether the replicas in `fenced` acknowledge a step between `old` and `new`.

    Replicas that are declared `lost` are never taken for fenced: their storage may come back, and who planned before
    the declaration would count it. Where the others are too few, all of them have to be fenced; no quorum is left then
    for anybody who knows of the declaration, and requests look for it (docs/decisions/026-lost-storage.md).

    Old and new are counted apart. Counting both together instead would not do: of six replicas with four fenced, two
    of the three old ones are free to form a quorum (design, section 10).
    """
    for replicas in (old, new):
        groups: list[Sequence[int]] = [replicas]
        if level is BarrierLevel.EACH_QUORUM:
            groups += [[r for r in replicas if datacenter_of(r) == dc] for dc in set(map(datacenter_of, replicas))]
        for group in groups:
            need = len(group) if level is BarrierLevel.ALL else blocking(len(group))
            left = [replica for replica in group if replica not in lost]
            if sum(replica in fenced for replica in left) < min(need, len(left)):
                return False
    return True


def majorities_meet(
    read: Sequence[int], write: Sequence[int], unread: Collection[int] = (), unwritten: Collection[int] = ()
) -> bool:
    """Whether every majority of `read` shares a replica with every majority of `write`.

    What the reader knows to be lost (`unread`), or the writer (`unwritten`), is in none of its majorities, which need
    as many replicas as before; where too few are left there is no majority.
    """
    readable, writable = set(read).difference(unread), set(write).difference(unwritten)
    needed, wanted = majority(len(read)), majority(len(write))
    if needed > len(readable) or wanted > len(writable):
        return True
    # The worst case picks as many replicas outside the other set as it can; the shared part must still overlap.
    shared = len(readable & writable)
    read_inside = max(0, needed - (len(readable) - shared))
    write_inside = max(0, wanted - (len(writable) - shared))
    return read_inside + write_inside > shared
