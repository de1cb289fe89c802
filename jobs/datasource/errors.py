"""Errors of Epochlake as Spark shows them: one of its own kind, with a code, the reason and the hint.

Spark calls a data source in processes of its own, and carries what is raised there to the user as a text. So the text
has to say everything. Spark puts the frames of its process in front of it, where nobody wants to read them: they are
left out of errors that say what to do, and stay with all others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from epochlake.placement.errors import EpochlakeError
from pyspark.errors import PySparkRuntimeError

_WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.", "pyspark.sql.streaming.")
"""Modules that Spark runs as its processes of Python."""


class EpochlakeSparkError(PySparkRuntimeError):
    """What the data source could not do: `[EPOCHLAKE_…] reason. hint`. The code is the name of Epochlake's error."""


@contextmanager
def as_spark_says() -> Iterator[None]:
    """A body whose errors of Epochlake become Spark's."""
    try:
        yield
    except EpochlakeError as error:
        if is_worker():
            # Read by Spark when it hands on what ends this process, which it does with every error: a worker that has
            # failed is not used again, so no frames of others are hidden.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise EpochlakeSparkError(f"[{code_of(error)}] {error}") from None


def is_worker() -> bool:
    """Whether this process is one that Spark has started to run Python in."""
    started_as = getattr(sys.modules.get("__main__"), "__spec__", None)
    return started_as is not None and started_as.name.startswith(_WORKERS)


def code_of(error: EpochlakeError) -> str:
    """`EPOCHLAKE_` and the name of the error, as Spark writes its conditions."""
    return "EPOCHLAKE_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(error).__name__).upper()
