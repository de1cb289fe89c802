"""The one root of every error, kept in the lowest package so that all three can raise below it.

A message says what was asked, what stands in the way, and what to do. `exit_code` is what the command line ends with
(design, section 13): 1 failed, 2 usage, 3 rejected by the metadata, 4 an invariant does not hold, 75 worth retrying.
"""

from __future__ import annotations


def words_of(error: BaseException) -> str:
    """What an error says, to be a part of a sentence: one line without a full stop of its own."""
    return " ".join(str(error).split()).rstrip(" .") or type(error).__name__


class EpochlakeError(Exception):
    """Root of all errors of Epochlake."""

    exit_code = 1


class InvalidRequest(EpochlakeError):
    """What was asked cannot be meant: a wrong type, an unknown name, a value out of range."""

    exit_code = 2


class InvariantViolated(EpochlakeError):
    """Something that must always hold does not."""

    exit_code = 4


class PlacementImpossible(EpochlakeError):
    """No placement satisfies the replication that was asked for."""

    exit_code = 3
