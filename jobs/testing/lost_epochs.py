"""Rows beside a log that goes back: since when, until its loss was accepted, and until a repair was complete after it.

In the lost epochs replicas may have moved, so what was acknowledged by them may lie where nobody reads. Promised is
what docs/upkeep.md says: what was planned at the lost epochs lands nowhere any more, and with a repair after the loss
was accepted all is there again that was acknowledged at QUORUM, as long as one replica of each quorum still is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from epochlake.jobs.testing.disk import LOG
from epochlake.jobs.testing.scenario import Fault, Scenario
from epochlake.jobs.testing.world import ROOT, World
from epochlake.jobs.upkeep.lost_epochs import accept_loss
from epochlake.metastore.errors import Rejected
from epochlake.placement.rejections import Code

TRIES = 20
"""So often the loss of epochs is accepted at rest, until nothing is lost."""


class Loss(NamedTuple):
    """Steps of the scheduler: when the log went back, when its loss was accepted, and when a repair was complete that
    began after that.
    """

    began: float
    accepted: float = float("inf")
    repaired: float = float("inf")

    def excuses(self, began: float, ended: float, written: float) -> bool:
        """Whether a read need not show what was acknowledged of a write that began at the step `written`."""
        return written < self.accepted and ended > self.began and began < self.repaired


class Losses:
    """The times at which the log of a world went back."""

    def __init__(self, world: World) -> None:
        self.all: list[Loss] = []
        self._world = world

    def note(self, place: str) -> None:
        """What is in a place is about to be replaced by what had been there before."""
        if place in (ROOT, LOG):
            self.all.append(Loss(self._world.scheduler.steps))

    @property
    def are_accepted(self) -> bool:
        return all(one.accepted < float("inf") for one in self.all)

    @property
    def are_repaired(self) -> bool:
        return all(one.repaired < float("inf") for one in self.all)

    def accept(self) -> bool:
        """Let the cluster go on where its log ends, if it went back; whether there was something to accept."""
        world, before, told = self._world, len(self.all), None
        try:
            told = accept_loss(world.configuration, storage=world.storage(world.scheduler.current.process))
            world.scheduler.note(f"accept loss: incarnation {told.incarnation} begins at epoch {told.epoch}")
        except Rejected as rejected:
            # Another one has accepted it, or one who failed afterwards.
            world.scheduler.note(f"accept loss: {rejected}")
            if rejected.code != Code.NOTHING_LOST:
                raise
        now = world.scheduler.steps
        self.all = [
            one._replace(accepted=now) if number < before and one.accepted == float("inf") else one
            for number, one in enumerate(self.all)
        ]
        return told is not None

    def settle(self) -> None:
        """Accept what is lost until nothing is."""
        for _ in range(TRIES):
            if not self.accept():
                return

    def repaired(self, since: float) -> None:
        """A repair is complete that began at this step."""
        now = self._world.scheduler.steps
        self.all = [
            one._replace(repaired=now) if one.accepted <= since and one.repaired == float("inf") else one
            for one in self.all
        ]


def is_of_the_log(fault: Fault) -> bool:
    """Whether a fault lets the log go back, or takes it, and destroys nothing of any replica."""
    return fault.kind in ("old storage", "lost storage") and fault.place in (ROOT, LOG)


def goes_back(scenario: Scenario) -> bool:
    """Whether epochs are lost: of a log without members."""
    return not scenario.settings.members and any(map(is_of_the_log, scenario.faults))


def excused(losses: Iterable[Loss], began: float, ended: float, written: float) -> bool:
    """Whether any of the losses excuses a read, as `Loss.excuses`."""
    return any(one.excuses(began, ended, written) for one in losses)
