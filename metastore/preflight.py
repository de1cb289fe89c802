"""What a machine must have before anything starts: Java 17 or 21, for Spark and for the embedded ZooKeeper.

Looked for where `spark-class` looks, so that the answer is about the Java that would really run: `JAVA_HOME` when it is
set, `PATH` otherwise. `python -m epochlake.metastore.preflight` prints the path, or one line on what is wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from epochlake.placement.errors import EpochlakeError

SUPPORTED = (17, 21)
_WANTED = "Epochlake needs Java 17 or 21"
_WHAT_TO_DO = "Install one and put it on PATH, or set JAVA_HOME to it"


class JavaUnsuitable(EpochlakeError):
    """There is no Java, or one that Spark 4.2 does not run on; the message is one line."""


def require_java(environ: Mapping[str, str] | None = None) -> Path:
    """The `java` binary that Spark and ZooKeeper are started with; raises `JavaUnsuitable`."""
    environ = os.environ if environ is None else environ
    java = _find(environ)
    try:
        # In a session of its own: a Ctrl-C at the terminal would end it, and look like a Java that does not work.
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            env=dict(environ),
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaUnsuitable(f"{_WANTED}, but {java} does not start ({error})", hint=_WHAT_TO_DO) from error
    version = major_version(answer.stderr + answer.stdout)
    if version is None:
        raise JavaUnsuitable(f"{_WANTED}, but {java} does not tell its version", hint=_WHAT_TO_DO)
    if version not in SUPPORTED:
        raise JavaUnsuitable(f"{_WANTED}, but {java} is Java {version}", hint=_WHAT_TO_DO)
    return java


def major_version(text: str) -> int | None:
    """The major version in what `java -version` printed (`1.8.0_402` is 8), None when there is none in it."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _find(environ: Mapping[str, str]) -> Path:
    if home := environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaUnsuitable(
                f"{_WANTED}, but JAVA_HOME is {home} and there is no bin/java in it", hint="Correct it"
            )
        return java
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is None:
        raise JavaUnsuitable(f"{_WANTED}, but there is no java", hint=_WHAT_TO_DO)
    return Path(on_path)


def main() -> int:
    try:
        print(require_java())
    except JavaUnsuitable as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
