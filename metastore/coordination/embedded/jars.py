"""Where the jars of ZooKeeper are: beside PySpark, in whatever way PySpark itself is imported.

`pip install pyspark` puts them into the package. Under `spark-submit` PySpark is imported from
`$SPARK_HOME/python/lib/pyspark.zip`, which holds no jars: then they are in the directory that holds the zip.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from epochlake.placement.errors import EpochlakeError

_LEVELS = 4
"""`jars` is at most so far above the package: <home>/python/lib/pyspark.zip/pyspark."""


class ZooKeeperMissing(EpochlakeError):
    """There is no ZooKeeper to start: its jars were not found."""


def zookeeper_jars(environ: Mapping[str, str] | None = None) -> Path:
    """The directory of the jars of Spark, ZooKeeper among them; PySpark is not imported (that takes a second).

    Looked for in the package, above it, in `SPARK_HOME`, and where `pip` installed PySpark. Raises ZooKeeperMissing.
    """
    tried: dict[Path, None] = {}
    for place in _places(os.environ if environ is None else environ):
        jars = place / "jars"
        if jars in tried:
            continue
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return jars
        tried[jars] = None
    raise ZooKeeperMissing(
        "the embedded ZooKeeper needs the jars that come with PySpark, and there are none in "
        f"{', '.join(map(str, tried)) or 'any place: PySpark is not installed'}",
        hint="Run `pip install 'epochlake[spark]'`, set SPARK_HOME to a Spark that has its jars, or name an ensemble "
        "in `zookeeper.connect`",
    )


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    found = importlib.util.find_spec("pyspark")
    for location in (found.submodule_search_locations if found is not None else None) or ():
        package = Path(location)
        yield package
        yield from list(package.parents)[:_LEVELS]
    if home := environ.get("SPARK_HOME"):
        yield Path(home)
    try:
        yield Path(str(importlib.metadata.distribution("pyspark").locate_file("pyspark")))
    except importlib.metadata.PackageNotFoundError:
        return
