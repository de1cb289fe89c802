"""Holes in replica tables, of which a commit has vanished: nobody reads over one (docs/decisions/032).

Who has read commits before a hole and none after it knows nothing of what came later: files that were added, taken out,
fences. That is looked at from outside: up to which commit each process has read is known by its accesses.
"""

from __future__ import annotations

from collections.abc import Iterable

from epochlake.jobs.testing.scheduler import Process
from epochlake.jobs.testing.world import World


def open_holes(world: World, since: float = float("inf")) -> list[tuple[str, int]]:
    """The logs of replica tables in which a commit is missing between others, and its version: those that are there
    since a step.
    """
    found = []
    for path, step in world.holes.items():
        log, _, name = path.rpartition("/")
        if step >= since or world.disk.status(path) is not None or world.disk.status(log) is None:
            continue
        others = [int(one[:-5]) for one in world.disk.names(log) if one[:-5].isdigit() and one.endswith(".json")]
        if others and min(others) < int(name[:-5]) < max(others):
            found.append((log, int(name[:-5])))
    return found


def read_over(world: World, process: Process, files: Iterable[str], since: float) -> list[str]:
    """Replica tables from which a read takes these files though their logs have holes since a step, which began after
    it: those of which the process knows nothing behind the hole. Of real Delta tables nothing is said, as delta-rs has
    accesses of its own.
    """
    if world.folder is not None or not world.holes:
        return []
    tables = {log.removesuffix("/_delta_log"): missing for log, missing in open_holes(world, since)}
    found = []
    for table, missing in sorted(tables.items()):
        known = world.seen.known.get((process, f"{table}/_delta_log"), -1)
        if known < missing and any(file.startswith(f"{table}/") for file in files):
            found.append(f"{process.name} reads {table} as of its commit {known}, over the hole at {missing}")
    return found
