"""What must hold of a history of merges, whatever was done to it.

The checkers know calls, when they began and ended, and what they said. They ask what a list would keep that only one
could add to at a time: nobody's name is lost or comes twice, and every reader is shown a beginning of the same list.
An overwrite begins all lists anew, in its turn among the merges. So does who writes a row without reading it, of that
row; a merge that runs meanwhile may come over it, or have read before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from epochlake.jobs.testing.merge_drawing import KEYS, OVER, OVERWRITE
from epochlake.jobs.testing.scenario import Scenario


class Told(NamedTuple):
    """What a call was told that has succeeded. `counts`: how many rows were inserted, updated and deleted."""

    began: float
    ended: float
    already: bool
    counts: tuple[int, int, int]


class MergeAccess(NamedTuple):
    """A merge of a name into some keys, an overwrite by them, or a write over them, from its first try to its first
    success; or a read of all keys.

    `began` and `ended` are steps of the scheduler. `names` of a read: what each key's note says, in its order. `told`:
    what each call of it was told that succeeded, of writes over rows nothing; `tries`: when its calls have begun.
    """

    kind: str
    who: str
    name: str
    keys: tuple[int, ...]
    began: float
    ended: float
    acknowledged: bool
    names: dict[int, tuple[str, ...]] = {}  # noqa: RUF012
    told: tuple[Told, ...] = ()
    tries: tuple[float, ...] = ()

    def begins_anew(self, key: int) -> bool:
        """Whether it leaves nothing of what a key has had."""
        return self.kind == OVERWRITE or (self.kind == OVER and key in self.keys)


class MergeHistory(NamedTuple):
    """What a world did with merges, and what was done to it."""

    scenario: Scenario
    accesses: list[MergeAccess]
    steps: int
    harm: Counter[str]
    coverage: Counter[str]
    unexpected: list[str]


def violations(history: MergeHistory) -> list[str]:
    """What does not hold of a history; empty when all of it does."""
    calls = {one.name: one for one in history.accesses if one.kind != "read"}
    reads = [one for one in history.accesses if one.kind == "read"]
    found = list(history.unexpected)
    if not reads:
        return found
    last = reads[-1]
    for read in reads:
        for key in range(KEYS):
            found += _wrong(read, key, read.names.get(key, ()), calls, last)
    for name, call in calls.items():
        there = [key for key in call.keys if name in last.names.get(key, ())]
        alone = not any(one.begins_anew(key) for one in calls.values() for key in call.keys)
        if call.kind == "merge" and alone and there and there != list(call.keys):
            found.append(f"of the merge {name} into {list(call.keys)} only {there} are there at rest")
        found += _told_otherwise(call, calls, last if alone else None)
    found += _needless(history)
    return found


def _wrong(
    read: MergeAccess, key: int, names: Sequence[str], calls: dict[str, MergeAccess], last: MergeAccess
) -> Iterator[str]:
    """What a read must not show of a key."""
    who = f"{read.who} is shown of key {key} at step {read.began}"
    anew = [one for one in calls.values() if one.begins_anew(key) and one.began < read.ended]
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{who} the merge {name} {times} times"
        if name not in calls or key not in calls[name].keys or calls[name].began > read.ended:
            yield f"{who} {name}, which nobody has merged"
        elif calls[name].kind != "merge" and names[0] != name:
            yield f"{who} {list(names)}, in which {name} is not the first"
    for name, call in calls.items():
        must = key in call.keys and call.acknowledged and call.ended < read.began
        if must and name not in names and not _may_be_gone(call, key, calls, anew):
            yield f"{who} {list(names)}, without {name}"
    for position, name in enumerate(names):
        for earlier in names[:position]:
            if name in calls and earlier in calls and calls[name].ended < calls[earlier].began:
                yield f"{who} {earlier} before {name}, which had ended when it began"
    yield from (f"{who} {list(names)}, {one}" for one in _is_back(read, key, names, calls, anew))
    in_the_end = last.names.get(key, ())
    if not any(one.begins_anew(key) for one in calls.values()) and tuple(names) != in_the_end[: len(names)]:
        yield f"{who} {list(names)}, and in the end it is {list(in_the_end)}"


def _may_be_gone(call: MergeAccess, key: int, calls: dict[str, MergeAccess], anew: Sequence[MergeAccess]) -> bool:
    """Whether what a call has put there may be gone: another one that leaves nothing had not ended when it began; or it
    has not read what it came over, and a merge came over it that had read before it.
    """
    if any(one is not call and not one.ended < call.began for one in anew):
        return True
    merges = [one for one in calls.values() if one.kind == "merge" and key in one.keys]
    return call.kind == OVER and any(_overlap(one, call) for one in merges)


def _is_back(
    read: MergeAccess, key: int, names: Sequence[str], calls: dict[str, MergeAccess], anew: Sequence[MergeAccess]
) -> Iterator[str]:
    """What is shown although somebody has left nothing of it, who began when it was there and had ended before."""
    for over in anew:
        if not over.acknowledged or not over.ended < read.began:
            continue
        if over.kind == OVER and any(_overlap(one, over) for one in calls.values() if one.kind == "merge"):
            continue  # a merge that has read before it comes over it
        for name in names:
            if name in calls and name != over.name and calls[name].ended < over.began:
                yield f"and {over.name} has left nothing of {name}"


def _overlap(one: MergeAccess, other: MergeAccess) -> bool:
    return one.began < other.ended and other.began < one.ended


def _told_otherwise(call: MergeAccess, calls: dict[str, MergeAccess], last: MergeAccess | None) -> Iterator[str]:
    """What calls of one name were told of it: the same counts, which are those of the rows; and whether it had been
    finished before, by another call, which it had when one of them had succeeded.

    `last`: what is read at rest, where nothing has begun anew.
    """
    said = {told.counts for told in call.told}
    if len(said) > 1:
        yield f"calls of {call.name} were told of it {sorted(said)}"
    for told in call.told:
        inserted, updated, deleted = told.counts
        if inserted + updated != len(call.keys) or (deleted and call.kind == "merge"):
            yield f"{call.name} has {len(call.keys)} rows, and was told {told.counts}"
        if told.already and not any(began != told.began and began < told.ended for began in call.tries):
            yield f"{call.name} was told that it had been finished before, and nobody else has tried it"
        if not told.already and any(other.ended < told.began for other in call.told):
            yield f"{call.name} had succeeded, and was told again that it had not been finished before"
        if last is not None and call.kind == "merge":
            first = sum(last.names.get(key, ())[:1] == (call.name,) for key in call.keys)
            if inserted != first:
                yield f"{call.name} was told of {inserted} rows that it has inserted, and they were {first}"


def _needless(history: MergeHistory) -> Iterator[str]:
    """Where nothing goes wrong each merge succeeds, but for those that others overtake."""
    if not history.scenario.faults and not any(part.blind for part in history.scenario.parts):
        for one in history.accesses:
            if not one.acknowledged:
                yield f"nothing has gone wrong, and the {one.kind} {one.name} has failed"
