"""What happens in the demo, and when: everything is timed by the writer's progress, so that it happens while it writes.

A batch is only begun when what is to go on during it has begun, and it is written part by part until the log shows that
it went on. So nodes join and tablets are rebuilt under a pipeline that writes on any machine, slow or fast.
"""

from __future__ import annotations

import time
from functools import partial

import msgspec
from epochlake.jobs.demo.stage import (
    CAPACITY,
    DATACENTER,
    FIRST_NODES,
    DemoFailed,
    RunningDemo,
    settled,
    tablets_coming_to,
)
from epochlake.jobs.demo.timeline import arrivals
from epochlake.metastore.following import history

SHORTEST = 7
"""Batches that it takes for everything to happen: one before it all, and then one during each join, the loss and the
replacement, and one more while the tablets of the second join, and of the replacement, move."""

FOURTH, FIFTH, LOST, REPLACEMENT = "n4", "n5", "n3", "n6"
RACK_OF_FOURTH, RACK_OF_FIFTH = "r1", "r2"
BEFORE_GROWTH = "before the joins"
BEFORE_LOSS = "before the loss"
AT_THE_END = "at the end"
BEGIN_SECONDS = 90.0
JOIN_SECONDS = 240.0
"""With agents, which first have to be started, to know of each other, and to follow the log."""

SETTLE_SECONDS = 150.0


class Schedule(msgspec.Struct, frozen=True):
    """During which batch a node is added, lost, replaced."""

    batches: int
    fourth: int
    fifth: int
    loss: int
    replacement: int


def schedule(batches: int) -> Schedule:
    """The schedule for so many batches, `SHORTEST` at least; of twelve: 3, 5, 8, 10."""
    fourth = max(2, batches * 3 // 12)
    fifth = max(fourth + 1, batches * 5 // 12)
    loss = max(fifth + 2, batches * 8 // 12)
    return Schedule(batches, fourth, fifth, loss, max(loss + 1, batches * 10 // 12))


def perform(stage: RunningDemo) -> None:
    """Write all batches while the cluster grows, loses a node and rebuilds it; leave it settled.

    Raises DemoFailed or ChildFailed as soon as something fails.
    """
    plan = schedule(stage.story.batches)
    during = {
        plan.fourth: lambda: _add(stage, FOURTH, RACK_OF_FOURTH),
        plan.fifth: lambda: _add(stage, FIFTH, RACK_OF_FIFTH),
        plan.loss: lambda: _lose(stage),
        plan.replacement: lambda: _replace(stage),
    }
    growing = {plan.fourth: FOURTH, plan.fifth: FIFTH, plan.replacement: REPLACEMENT}
    for batch in range(1, plan.batches + 1):
        if batch == plan.fourth:
            stage.moment(BEFORE_GROWTH)
        if batch == plan.loss:
            _wait_until_settled(stage, [*FIRST_NODES, FOURTH, FIFTH])
            stage.moment(BEFORE_LOSS)
        if batch - 1 in growing:
            moved = partial(_moved, stage, growing[batch - 1])
            stage.write(batch, during.get(batch, _nothing), until=moved)
        else:
            stage.write(batch, during.get(batch, _nothing))
        if batch in growing:
            # The next batch begins at once when tablets are on their way.
            _wait_for_tablets(stage, growing[batch])
        else:
            stage.finish_orders()
            stage.read()
    _wait_until_settled(stage, [FOURTH, FIFTH, REPLACEMENT])
    stage.moment(AT_THE_END)


def _nothing() -> None:
    """What is done during most batches."""


def _moved(stage: RunningDemo, node: str, since: float, until: float) -> bool:
    """Whether the log has an epoch between these times that brought tablets nearer to the node."""
    entries = history.entries(stage.cluster.log())
    found = arrivals(entries, [(since, until)], stage.cluster.catch_up()).get(node)
    return found is not None and found.while_writing > 0


def _add(stage: RunningDemo, node: str, rack: str) -> None:
    if stage.agents is not None:
        stage.join(node, rack)
        return
    volume = f"d1={stage.place.volume_of(node)},{CAPACITY}"
    order = ["node", "add", node, "--datacenter", DATACENTER, "--rack", rack, "--volume", volume]
    stage.order(order, node, f"{node} is added in rack {rack}")


def _replace(stage: RunningDemo) -> None:
    volume = f"d1={stage.place.volume_of(REPLACEMENT)},{CAPACITY}"
    order = ["node", "replace", LOST, REPLACEMENT, "--volume", volume]
    if stage.agents is not None:
        stage.agents.begin(REPLACEMENT)
    stage.order(order, REPLACEMENT, f"{REPLACEMENT} is added in the place of {LOST}")


def _lose(stage: RunningDemo) -> None:
    """Lose the storage in the middle of a batch: as soon as its first file is stored there."""
    before = stage.files_of(LOST)
    deadline = time.monotonic() + BEGIN_SECONDS
    while stage.files_of(LOST) == before:
        if time.monotonic() > deadline:
            raise DemoFailed(f"the writer stored nothing on {LOST} within {BEGIN_SECONDS:.0f} s")
        time.sleep(0.01)
    stage.lose(LOST)


def _wait_for_tablets(stage: RunningDemo, node: str) -> None:
    seconds = BEGIN_SECONDS if stage.agents is None else JOIN_SECONDS
    stage.wait(f"that tablets set out for {node}", lambda now: tablets_coming_to(now, node) > 0, seconds)


def _wait_until_settled(stage: RunningDemo, nodes: list[str]) -> None:
    """Wait until nothing is on its way; the rows are counted again and again meanwhile."""
    names = f"{', '.join(nodes[:-1])} and {nodes[-1]}"
    seconds = SETTLE_SECONDS if stage.agents is None else JOIN_SECONDS
    stage.wait(f"that {names} are settled", lambda now: settled(now, nodes), seconds, meanwhile=stage.read)
