"""Who may append a submission: one state, and where each step leads."""

from __future__ import annotations

import itertools

import pytest
from epochlake.metastore.committing.outcomes import committed_at
from epochlake.metastore.committing.submissions import TRANSITIONS, Committed, Standing, Submission, SubmissionStep
from epochlake.metastore.metadata.events import SwitchBalancing

from tests.support.logs import START, sealed
from tests.support.slices import sliced


def submission() -> Submission:
    return Submission(SwitchBalancing(on=False), "r", "me", "", 0.0, None)


def test_every_step_leads_somewhere_from_every_standing() -> None:
    assert {(standing, step) for standing, steps in TRANSITIONS.items() for step in steps} == set(
        itertools.product(Standing, SubmissionStep)
    )


@sliced(at_least=125)
@pytest.mark.parametrize("steps", list(itertools.product(SubmissionStep, repeat=4)))
def test_it_is_known_who_may_have_it_after_any_steps(steps: tuple[SubmissionStep, ...]) -> None:
    one = submission()
    offered = taken = False
    for step in steps:
        one.take(step)
        # An offer can be taken until it is withdrawn; what was taken can land until the log moves on.
        offered = step is SubmissionStep.OFFER or (
            offered and step in (SubmissionStep.LOSE_ANSWER, SubmissionStep.MOVE_LOG)
        )
        taken = step in (SubmissionStep.LOSE_SIGHT, SubmissionStep.LOSE_ANSWER) or (
            taken and step is not SubmissionStep.MOVE_LOG
        )
        assert (one.offered, one.taken) == (offered, taken)
    assert (one.standing is Standing.OWN) == (not offered and not taken)


def test_what_another_process_had_asked_for_was_there_already_however_it_was_found() -> None:
    """An offer that is taken and found in the log was not appended for this call, when another author asked for it."""
    event = SwitchBalancing(on=False)
    mine, theirs = (sealed(event, START, request_id="r", author=author) for author in ("me", "somebody else"))
    for steps in ([], [SubmissionStep.OFFER], [SubmissionStep.OFFER, SubmissionStep.LOSE_SIGHT]):
        one = submission()
        for step in steps:
            one.take(step)
        assert committed_at(one, theirs) == Committed(theirs.epoch, "r", already=True)
        assert committed_at(one, mine) == Committed(mine.epoch, "r", already=not steps)


def test_what_was_appended_for_another_call_of_the_same_process_is_told_as_there_already() -> None:
    """A call that came while an earlier one's offer could still be taken; one that was to come elsewhere."""
    mine = sealed(SwitchBalancing(on=False), START, request_id="r", author="me")
    joined = submission()
    joined.take(SubmissionStep.OFFER)
    joined.has_joined = True
    assert committed_at(joined, mine) == Committed(mine.epoch, "r", already=True)
    # That one was taken back whole: whoever commits it now does so for this call.
    joined.take(SubmissionStep.KEEP)
    joined.take(SubmissionStep.OFFER)
    assert committed_at(joined, mine) == Committed(mine.epoch, "r", already=False)
    for expected, already in ((mine.epoch - 1, False), (mine.epoch, True), (mine.epoch - 2, True)):
        one = Submission(SwitchBalancing(on=False), "r", "me", "", 0.0, expected)
        one.take(SubmissionStep.LOSE_ANSWER)
        assert committed_at(one, mine) == Committed(mine.epoch, "r", already=already)
