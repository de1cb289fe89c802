"""How a task ends when Epochlake raises: what a retry may mend goes on as it is, the rest fails the task for good.

By the exit code of the error, as `epochlake` would end: 75 is worth retrying, and so is 1, of which nobody knows. What
is wrongly called (2), rejected (3) or does not hold (4) is the same at the next try.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from epochlake.placement.errors import EpochlakeError

try:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
except ImportError:  # Airflow 3.1 has them elsewhere
    from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException

__all__ = [
    "WORTH_RETRYING",
    "AirflowException",
    "AirflowFailException",
    "AirflowSkipException",
    "ended_with",
    "task_ends",
]

WORTH_RETRYING = 75
FOR_GOOD = {2, 3, 4}
"""Exit codes after which no retry helps."""


@contextmanager
def task_ends() -> Iterator[None]:
    """A body whose errors of Epochlake end the task as their exit codes say."""
    try:
        yield
    except EpochlakeError as error:
        if error.exit_code in FOR_GOOD:
            raise AirflowFailException(str(error)) from error
        raise


def ended_with(exit_code: int, said: str) -> AirflowException:
    """What a task raises for an exit code other than 0, and what was said with it."""
    return AirflowFailException(said) if exit_code in FOR_GOOD else AirflowException(said)
