"""Becoming a ZooKeeper server: `python -m epochlake.jobs.agent.server_process`, which an agent starts as its child.

It looks what the directory and the ensemble say, prepares the server where that is needed, and becomes Java: the
process stays the same, so that the kernel ends it with the agent. It keeps a lock on the directory, also as Java: two
servers never run in one, whoever was killed and whoever comes back.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import sys
import time
from pathlib import Path

import msgspec
from epochlake.jobs.agent.coordination_server import LOCK, LOG, NotStarted, keep_small
from epochlake.jobs.agent.processes import tell_agent
from epochlake.jobs.upkeep.coordination_members import Ensemble
from epochlake.metastore import configuration as configurations
from epochlake.metastore.configuration import PREFIX, Configuration
from epochlake.metastore.coordination.embedded.files import lock_within
from epochlake.metastore.coordination.embedded.jars import ZooKeeperMissing
from epochlake.metastore.coordination.embedded.server import die_with_parent
from epochlake.metastore.coordination.ensemble import EnsembleConfiguration, Server, parse_server
from epochlake.metastore.coordination.server_files import (
    has_to_be_prepared,
    require_own,
    start_command,
    stored,
    write_server_files,
)
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable
from epochlake.metastore.preflight import require_java
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError

LOCK_SECONDS = 10.0
"""How long the server of an agent that was killed may take to be gone."""

JAVA_OPTIONS = (
    "-Xms16m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-Dfile.encoding=UTF-8",
    "-Dzookeeper.jmx.log4j.disable=true",
)


class ServerRuns(EpochlakeError):
    """An earlier server runs in the directory."""


def made_ready(configuration: Configuration, directory: str, server: Server, cluster_id: str | None) -> list[str]:
    """The command that starts the server of a directory, once that is prepared as far as it has to be. `cluster_id`:
    the cluster whose ensemble it is to be in, as far as that is known.

    Raises JavaUnsuitable, InvalidRequest, ConfigurationError, CoordinationUnavailable, StorageUnavailable.
    """
    try:
        command = start_command(directory, str(require_java()), JAVA_OPTIONS)
    except ZooKeeperMissing as error:
        raise EpochlakeError(
            "a ZooKeeper server needs the jars that come with PySpark, and there are none here",
            hint="Run `pip install 'epochlake[agent,spark]'`, or set SPARK_HOME to a Spark that has its jars",
        ) from error
    storage = Storage(configuration.storage)
    require_own(storage, directory, server)
    ensemble = _ensemble(configuration, cluster_id)
    if has_to_be_prepared(server, stored(storage, directory), ensemble):
        members = () if ensemble is None else ensemble.servers
        write_server_files(storage, directory, server, members, configuration.zookeeper.operator, follows=True)
    return command


def _ensemble(configuration: Configuration, cluster_id: str | None) -> EnsembleConfiguration | None:
    """The ensemble of the configuration, as it says itself; None where it does not answer."""
    try:
        with Ensemble(configuration, cluster_id) as ensemble:
            found = ensemble.mover.configuration()
    except CoordinationUnavailable as error:
        logging.getLogger(__name__).warning("%s", error)
        return None
    if not found.servers:
        raise ConfigurationError(
            f"the ZooKeeper at {configuration.zookeeper.connect} is one server alone, and no ensemble",
            hint="Begin an ensemble by `epochlake metadata prepare-server --alone`, and name that",
        )
    return found


def locked(directory: Path) -> None:
    """Keep the directory for this process, and for what it becomes. Raises ServerRuns, OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    if not lock_within(handle, fcntl.LOCK_EX, time.monotonic() + LOCK_SECONDS):
        raise ServerRuns(f"an earlier server runs in {directory}", hint="End it, or wait for its end")
    os.set_inheritable(handle, True)


def main(arguments: list[str] | None = None) -> int:
    """Say why no server can be started, as JSON; or say nothing, and become one."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="server_process")
    for option in ("--directory", "--server"):
        parser.add_argument(option, required=True)
    parser.add_argument("--agent", type=int, required=True)
    for option in ("--conf", "--root", "--cluster"):
        parser.add_argument(option)
    given = parser.parse_args(arguments)
    if os.getppid() != given.agent:
        return 0  # it had ended before the kernel was asked to tell
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        configuration = configurations.load(Path(given.conf) if given.conf else None, root=given.root)
        locked(Path(given.directory))
        command = made_ready(configuration, given.directory, parse_server(given.server), given.cluster)
        log = _log_of(Path(given.directory))
    except EpochlakeError as error:
        return _not_started(error.statement, error.hint)
    except OSError as error:
        return _not_started(f"{given.directory} cannot be used: {error.strerror}", "Look at the disk of the home")
    # From here on the pipe to the agent is closed, which tells it that a server has begun.
    for number in (1, 2):
        os.dup2(log, number)
    # Whoever may change the ensemble is nobody's business in Java; and it reads names of files by the locale.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    os.execve(command[0], command, environment | {"LC_ALL": "C.UTF-8"})


def _log_of(directory: Path) -> int:
    log = directory / LOG
    keep_small(log)
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def _not_started(reason: str, hint: str) -> int:
    tell_agent(msgspec.json.encode(NotStarted(reason, hint)).decode())
    return 1


if __name__ == "__main__":
    sys.exit(main())
