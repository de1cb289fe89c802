"""The only place that starts Spark sessions: Delta on board, quiet, small on one machine, polite to what is there.

One idea: a session that somebody else made (a notebook, Databricks, `spark-submit`) is used as it is; only a session
that is made here gets these settings. Delta's jars are resolved by Ivy once; after that their paths are known and a
start neither asks the network nor prints Ivy's report.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import logging
import os
import shutil
import sys
import tempfile
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochlake.metastore.preflight import require_java
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession


def require_session(spark: object, able: str = "createDataFrame") -> None:
    """Raise InvalidRequest for what is no session of Spark, classic or Connect.

    Those of Connect are of a class of their own, which cannot be imported everywhere: a session is what is `able`.
    """
    if not hasattr(spark, able):
        raise InvalidRequest(
            f"{spark!r} is no session of Spark", hint="Give the notebook's `spark`, or epochlake.session(NAME)"
        )


DELTA_COORDINATES = "io.delta:delta-spark_4.2_2.13:4.4.0"

# What Delta depends on and Spark brings in a newer version: not downloaded, not twice on the class path.
EXCLUDED = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "javax.annotation:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

# Can be set on a running session, also on a remote one.
SESSION_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # 50 by default: every Delta operation would take seconds.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A read names its files one by one: listing them is no job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # 4 MiB by default, and opening a file of a volume takes as long as reading less than one: beside eight files of
    # writes the four large ones of a table would be one task, whatever the cores.
    "spark.sql.files.openCostInBytes": "1048576",
}

LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_SOCKET_NAME = 48
"""Spark calls a socket by a UUID, with a few letters more."""

_LONGEST_SOCKET_PATH = 100
"""Systems allow 104 to 108 bytes."""

_LOG4J = Path(__file__).with_name("log4j2.properties")
_log = logging.getLogger(__name__)


class SparkUnavailable(EpochlakeError):
    """A Spark session cannot be started here."""


def session(
    app_name: str, *, master: str | None = None, remote: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """The Spark session of this process: the one that is there, or else a new one.

    `master` is a Spark master (default: what `spark-submit` says, else `local[*]`). `remote` is a Spark Connect URL
    (`sc://host:port`), or `local` or `local[n]` for a Connect server in this process; default `SPARK_REMOTE`. `extra`
    settings go before the ones here. With a session that is there already all four are ignored.

    Raises `JavaUnsuitable` and `SparkUnavailable`, each with one line.
    """
    if (existing := _existing()) is not None:
        return existing
    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote is None:
        return _classic(app_name, master, extra or {})
    if remote.startswith("local"):
        return _local_connect(app_name, remote, extra or {})
    return _connected(remote, {**SESSION_SETTINGS, **(extra or {})})


def settings(master: str) -> dict[str, str]:
    """All settings of a new session on `master`, Delta's jars included."""
    mine = {"spark.jars": ",".join(delta_jars()), **DELTA_SETTINGS, **SESSION_SETTINGS}
    if master.startswith("local"):
        mine |= LOCAL_SETTINGS | {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"}
        mine |= _sockets()
    return mine


def _sockets() -> dict[str, str]:
    """Settings by which the JVM and its Python processes talk over sockets of the file system.

    Each task that runs Python begins and ends sooner so, by 10 to 30 ms. The sockets lie in a directory that goes with
    this process; where its path is too long for a socket, nothing is set.
    """
    directory = tempfile.mkdtemp(prefix="epochlake-spark-")
    atexit.register(_remove, directory, os.getpid())
    if len(os.fsencode(directory)) + _SOCKET_NAME > _LONGEST_SOCKET_PATH:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": directory}


def _remove(directory: str, made_by: int) -> None:
    """At the end of the process that made it, and not of one that was forked from it."""
    if os.getpid() == made_by:
        shutil.rmtree(directory, ignore_errors=True)


def submit_options() -> list[str]:
    """Options for `spark-submit` that give a job Delta, for who has no `conf/spark-defaults.conf` at hand."""
    options = {"spark.jars": ",".join(delta_jars()), **DELTA_SETTINGS, **SESSION_SETTINGS}
    return [word for key, value in options.items() for word in ("--conf", f"{key}={value}")]


def delta_jars() -> list[str]:
    """Paths of Delta's jars, downloaded into Ivy's cache when they are asked for the first time on this machine.

    Processes that ask at the same time wait for one another: Ivy's cache does not stand two writers.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epochlake"
    cache.mkdir(parents=True, exist_ok=True)
    known = cache / (DELTA_COORDINATES.replace(":", "_") + ".json")
    with known.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = _recorded(known)
        if jars is None:
            jars = _resolve()
            written = known.with_suffix(".new")
            written.write_text(json.dumps(jars, indent=1), encoding="utf-8")
            written.replace(known)
    return jars


def _existing() -> SparkSession | None:
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # A session is active by thread; in another thread of the same process the context tells that there is one.
    if SparkContext._active_spark_context is not None or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return SparkSession.builder.getOrCreate()
    return None


def _classic(app_name: str, master: str | None, extra: Mapping[str, str]) -> SparkSession:
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(app_name, extra)
    require_java()
    master = master or extra.get("spark.master") or "local[*]"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return _built(SparkSession.builder.master(master).appName(app_name), {**settings(master), **extra})


def _submitted(app_name: str, extra: Mapping[str, str]) -> SparkSession:
    """Under `spark-submit` the JVM runs and its settings stand: only what it leaves open is filled in."""
    SparkContext._ensure_initialized()
    given = SparkConf()
    delta = DELTA_SETTINGS if _knows(DELTA_SETTINGS["spark.sql.extensions"]) else {}
    if not delta:
        # Rows are read and written without them; with settings that name them no query of this session would run.
        warnings.warn(
            "spark-submit was not given Delta's jars, so this session reads no Delta tables, the log among them: "
            "start it with --properties-file conf/spark-defaults.conf, or $(python -m epochlake.jobs.spark_session)",
            stacklevel=4,
        )
    mine = {"spark.app.name": app_name, **delta, **SESSION_SETTINGS, **extra}
    return _built(SparkSession.builder, {key: value for key, value in mine.items() if not given.contains(key)})


def _knows(name: str) -> bool:
    """Whether the JVM that runs has a class."""
    jvm: Any = SparkContext._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _local_connect(app_name: str, remote: str, extra: Mapping[str, str]) -> SparkSession:
    """A Connect server inside the JVM of this process, on a free loopback port and behind a token."""
    require_java()
    master = "local[*]" if remote == "local" else remote
    token = os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", str(uuid.uuid4()))
    os.environ.pop("SPARK_REMOTE", None)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    server = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": token,
    }
    _built(SparkSession.builder.master(master).appName(app_name), {**settings(master), **server, **extra})
    jvm: Any = SparkContext._jvm
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    # By these PySpark knows that functions must build Connect plans, and that stopping the session stops the server.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    os.environ["SPARK_LOCAL_REMOTE"] = "1"
    return _connected(f"sc://localhost:{service.localPort()}/;token={token}", SESSION_SETTINGS)


def _connected(url: str, runtime: Mapping[str, str]) -> SparkSession:
    try:
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except ImportError as error:
        raise SparkUnavailable(
            f"Spark Connect was asked for and its client is not installed ({error})",
            hint="Run `pip install 'epochlake[connect]'`",
        ) from error
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    connected: Any = ConnectSession.builder.remote(url).getOrCreate()
    for key, value in runtime.items():
        connected.conf.set(key, value)
    return connected


def _built(builder: SparkSession.Builder, options: Mapping[str, str]) -> SparkSession:
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _recorded(known: Path) -> list[str] | None:
    """The jars that were resolved before, None when there are none or one has gone."""
    try:
        jars = json.loads(known.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return jars if jars and all(Path(jar).is_file() for jar in jars) else None


def _resolve() -> list[str]:
    """Let Spark's own Ivy resolve Delta's coordinates, in a JVM that does nothing else, and say where the jars are."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    require_java()
    _log.warning("getting the jars of %s, once for this machine", DELTA_COORDINATES)
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.jars.packages", DELTA_COORDINATES).set("spark.jars.excludes", ",".join(EXCLUDED))
    with tempfile.TemporaryFile("w+", errors="replace") as report:
        try:
            gateway = launch_gateway(conf, {"stdout": report, "stderr": report})
        except PySparkRuntimeError as error:
            report.seek(0)
            raise SparkUnavailable(
                f"Delta's jars ({DELTA_COORDINATES}) cannot be had: {_cause(report.read())}. The first start "
                "needs a Maven repository",
                hint="Check the network, or name a mirror in DEFAULT_ARTIFACT_REPOSITORY",
            ) from error
        try:
            jars = gateway.jvm.java.lang.System.getProperty("spark.jars")
        finally:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(timeout=30)
    return [jar.removeprefix("file://") for jar in jars.split(",")]


def _cause(report: str) -> str:
    """The line of Ivy's report that says why."""
    lines = [line.strip() for line in report.splitlines()]
    telling = [line for line in lines if "exception" in line.lower() or "unresolved dependency" in line]
    return telling[-1] if telling else (lines[-1] if lines else "no report")


if __name__ == "__main__":
    print(*submit_options())  # $(…) of a shell makes words of it, as no value has a space
