"""Errors of Epochlake as Spark shows them: one of its own kind, with a code, the reason and the hint.

Spark calls a data source in processes of its own, and carries what is raised there to the user as a text. So the text
has to say everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from epochlake.placement.errors import EpochlakeError
from pyspark.errors import PySparkRuntimeError


class EpochlakeSparkError(PySparkRuntimeError):
    """What the data source could not do: `[EPOCHLAKE_…] reason. hint`. The code is the name of Epochlake's error."""


@contextmanager
def as_spark_says() -> Iterator[None]:
    """A body whose errors of Epochlake become Spark's."""
    try:
        yield
    except EpochlakeError as error:
        raise EpochlakeSparkError(f"[{code_of(error)}] {error}") from None


def code_of(error: EpochlakeError) -> str:
    """`EPOCHLAKE_` and the name of the error, as Spark writes its conditions."""
    return "EPOCHLAKE_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(error).__name__).upper()
