"""One seed has one course in every process, whatever the order in which a process goes through sets of texts."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from epochlake.jobs import campaign
from epochlake.jobs.testing.scenario import Operation, Part, Scenario, Settings, encoded

MOST_STEPS = 6_000
"""After which a history is cut off here: up to there it is to be the same all the same."""

PLAYING = """
import logging, sys
from pathlib import Path
from epochlake.jobs import campaign
from epochlake.jobs.testing.scenario import decoded

logging.disable(logging.CRITICAL)
for name in sys.argv[1:]:
    done = campaign.run(decoded(Path(name).read_bytes()), accesses=True)
    print(f"{name}: {done.steps} steps")
    for step in done.said:
        print(*step)
    for counted in (done.harm, done.told, done.coverage):
        print(list(counted.items()))
    print(done.violations)
"""
"""Prints the course of each scenario in a file that it is told."""


def fencing() -> list[Scenario]:
    """Replicas become fewer, so that a coordinator raises the fences of many at once: of tablets and of a ring."""
    wanted = tuple(Operation("replicas", wait, number=number) for wait, number in ((0.5, 3), (3.0, 5)))
    written = tuple(Operation("write", 0.5, f"w{number}", (number,), "QUORUM") for number in range(6))
    parts = (
        Part("pipeline0", "pipeline", (written,)),
        Part("coordinator0", "coordinator"),
        Part("operator", "operator", (wanted,)),
    )
    racks = ("r1", "r2", "r3", "r4", "r5")
    return [
        Scenario("rows", 5, 6.0, Settings(tablets=tablets, replication=5, racks=racks, latency=0.2), parts)
        for tablets in (1, 0)
    ]


def drawn(seed: int) -> list[Scenario]:
    """A scenario of each kind, of any theme."""
    chance = random.Random(f"hash seeds {seed}")
    tasks = [
        campaign.Task(kind, chance.randrange(2**31), theme=chance.choice(campaign.theme_names(kind)))
        for kind in campaign.KINDS
    ]
    print("\n".join(map(str, tasks)))
    return [campaign.drawn(task) for task in tasks]


def courses(scenarios: Sequence[Scenario], directory: Path, hash_seeds: Sequence[str]) -> list[list[str]]:
    """What a process with each of these hash seeds prints of them, all processes at the same time."""
    files = [directory / f"{number}.json" for number in range(len(scenarios))]
    for file, scenario in zip(files, scenarios, strict=True):
        file.write_bytes(encoded(scenario))
    printed = [directory / f"printed-{one}" for one in hash_seeds]
    running = []
    for one, path in zip(hash_seeds, printed, strict=True):
        environment = {**os.environ, "PYTHONHASHSEED": one, campaign.STEPS: str(MOST_STEPS)}
        with path.open("wb") as out:
            running.append(subprocess.Popen([sys.executable, "-c", PLAYING, *files], stdout=out, env=environment))
    assert [process.wait() for process in running] == [0] * len(running)
    return [path.read_text().splitlines() for path in printed]


def test_a_history_is_the_same_with_every_hash_seed(tmp_path: Path, seed: int) -> None:
    scenarios = [*fencing(), *drawn(seed)]
    one, other = courses(scenarios, tmp_path, ["1", "2"])
    assert len(one) > 500 * len(scenarios)
    # Only what differs first says where the order comes from.
    differing = next((pair for pair in zip_longest(one, other) if pair[0] != pair[1]), None)
    assert differing is None, [*one[max(0, one.index(differing[0]) - 3) : one.index(differing[0])], differing]
