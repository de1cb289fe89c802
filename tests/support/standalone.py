"""A standalone Spark cluster from PySpark's jars: a master and workers on loopback, stopped by their process ids."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from epochlake.metastore.coordination.embedded.server import die_with_parent
from epochlake.metastore.preflight import require_java

from tests.support.ports import free_port

HOST = "127.0.0.1"
START_SECONDS = 90.0
SHORT_LIVED = {"JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""Environment of JVMs that live for a minute, drivers and executors too: most of their work was compiling code."""
_JVM = ("-Xmx256m", "-Djava.net.preferIPv4Stack=true")


class StandaloneSpark:
    """A master and `workers` workers of one core each; `url` is what `spark-submit --master` wants."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        directory.mkdir(parents=True)
        atexit.register(self.stop)
        port, self._web = free_port(), free_port()
        self.url = f"spark://{HOST}:{port}"
        self._launch("master", "master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(self._web))
        for number in range(workers):
            self._launch(
                f"worker-{number}",
                "worker.Worker",
                *("--host", HOST, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(directory / f"work-{number}"), self.url),
            )
        self._wait_for_workers(workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        atexit.unregister(self.stop)

    def _launch(self, name: str, main_class: str, *arguments: str) -> None:
        import pyspark

        jars = Path(pyspark.__file__).parent / "jars" / "*"
        command = [str(require_java()), *_OPENED, *_JVM, "-cp", str(jars), f"org.apache.spark.deploy.{main_class}"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environ
                    | SHORT_LIVED
                    | {
                        "SPARK_LOCAL_IP": HOST,
                        "SPARK_HOME": str(Path(pyspark.__file__).parent),
                        "SPARK_SCALA_VERSION": "2.13",
                        "PYSPARK_PYTHON": sys.executable,
                    },
                    preexec_fn=die_with_parent,
                )
            )

    def _wait_for_workers(self, count: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                break
            try:
                with urllib.request.urlopen(f"http://{HOST}:{self._web}/json/", timeout=5) as answer:
                    if answer.read().count(b'"ALIVE"') >= count + 1:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self._directory.glob("*.log"))
        raise RuntimeError(f"the standalone cluster does not start:\n{logs}")


_OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.invoke",
        "java.lang.reflect",
        "java.io",
        "java.net",
        "java.nio",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "sun.nio.ch",
        "sun.nio.cs",
        "sun.security.action",
        "sun.util.calendar",
    )
)
"""What Spark's launcher opens of Java 17; the launcher itself would leave processes that are not ours to find."""
