"""Real ZooKeeper servers for tests, from PySpark's jars: one, or an ensemble whose members can be killed.

Everything listens on loopback, keeps its files in a directory of the test, and is ended by its process id, at the
latest when the test process ends (also when that is killed, on Linux).
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.embedded.files import four_letter_command, is_serving
from epochlake.metastore.coordination.embedded.jars import zookeeper_jars
from epochlake.metastore.coordination.embedded.server import die_with_parent, java_command
from epochlake.metastore.coordination.ensemble import Server, parse_configuration, parse_server
from epochlake.metastore.coordination.server_files import digest_of, write_server_files
from epochlake.metastore.preflight import require_java
from kazoo.client import KazooClient

from tests.support.ports import free_port
from tests.support.storages import STORAGE

HOST = "127.0.0.1"

_START_SECONDS = 300.0
_JAVA_OPTIONS = (
    "-Xms16m",
    "-Xmx96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",
    "-Dzookeeper.jmx.log4j.disable=true",
)


OPERATOR = "super:secret"
"""Who may change an ensemble that can be changed."""


class Ensemble:
    """`size` servers, started by the constructor; the members are numbered from 0. Size 1 is a standalone server.

    `host`: the address of this machine that they listen on. `changeable`: an ensemble, also of one, whose members can
    be changed; `beside` more servers follow it, and are no members as long as nobody makes them some.
    """

    def __init__(
        self, directory: Path, size: int = 3, host: str = HOST, *, changeable: bool = False, beside: int = 0
    ) -> None:
        self._directory = directory
        self._host = host
        self._java = str(require_java())
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._changeable = changeable
        self.ports = [free_port() for _ in range(size)]
        self._peers = [(free_port(), free_port()) for _ in range(size)]
        for index in range(size):
            self._write_configuration(index)
        atexit.register(self.stop)
        for index in range(size):
            self._launch(index)
        for index in range(size):
            self.wait_serving(index)
        for _ in range(beside):
            self._add(range(size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def connect_string(self) -> str:
        return ",".join(f"{self._host}:{port}" for port in self.ports)

    def server(self, index: int) -> Server:
        """A member as ZooKeeper writes it."""
        peer, vote = self._peers[index]
        return parse_server(f"server.{index + 1}={self._host}:{peer}:{vote};{self._host}:{self.ports[index]}")

    def _add(self, members: Iterable[int]) -> None:
        """Start a server that is no member yet and knows those. It serves when it follows their leader."""
        index = len(self.ports)
        self.ports.append(free_port())
        self._peers.append((free_port(), free_port()))
        self._write_configuration(index, members)
        self._launch(index)
        self.wait_serving(index)

    def kill(self, index: int = 0) -> None:
        """`kill -9`."""
        process = self._processes.pop(index)
        process.kill()
        process.wait()

    def runs(self, index: int) -> bool:
        """Whether its process is there, also one that hangs."""
        return index in self._processes

    def restart(self, index: int = 0) -> None:
        """Start a member that was killed, on the same port and data, and wait until it serves."""
        self._launch(index)
        self.wait_serving(index)

    def pause(self, index: int = 0) -> None:
        """Let it hang: connections stay open, nothing is answered when this has returned."""
        process = self._processes[index]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self, index: int = 0) -> None:
        self._processes[index].send_signal(signal.SIGCONT)

    def heal(self) -> None:
        """Let all members run and serve again, whatever a test did to them."""
        for index in range(len(self.ports)):
            if index in self._processes and self._processes[index].poll() is None:
                self.resume(index)
            else:
                self._launch(index)
        for index in range(len(self.ports)):
            self.wait_serving(index)

    def leader_index(self) -> int:
        """The member that leads; waits for an election that is going on."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            for index in self._processes:
                answer = four_letter_command(self._host, self.ports[index], b"srvr")
                if re.search(rb"^Mode: (leader|standalone)$", answer, re.MULTILINE):
                    return index
            time.sleep(0.05)
        raise TimeoutError("no ZooKeeper server leads")

    def wait_serving(self, index: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not is_serving(self._host, self.ports[index], self._home(index) / "data"):
            if self._processes[index].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper {index} does not start:\n{self._log(index).read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill all members; what they stored stays."""
        for index in list(self._processes):
            self.kill(index)
        atexit.unregister(self.stop)

    def _home(self, index: int) -> Path:
        return self._directory.resolve() / f"zookeeper-{index}"

    def _log(self, index: int) -> Path:
        return self._home(index) / "server.log"

    def _write_configuration(self, index: int, members: Iterable[int] | None = None) -> None:
        home = self._home(index)
        (home / "data").mkdir(parents=True)
        (home / "data" / "myid").write_text(str(index + 1))
        settings: dict[str, object] = {
            "dataDir": home / "data",
            "admin.enableServer": "false",
            "tickTime": 250,
            "initLimit": 40,
            "syncLimit": 12,
            "minSessionTimeout": 500,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "conf,srvr,ruok",
        }
        if self._changeable:
            settings |= {
                "reconfigEnabled": "true",
                "standaloneEnabled": "false",
                "DigestAuthenticationProvider.superDigest": digest_of(OPERATOR),
            }
        else:
            settings |= {"clientPort": self.ports[index], "clientPortAddress": self._host}
            if len(self.ports) > 1:
                settings |= {
                    f"server.{at}": f"{self._host}:{peer}:{vote}" for at, (peer, vote) in enumerate(self._peers, 1)
                }
        (home / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if self._changeable:
            named = range(len(self.ports)) if members is None else members
            write_server_files(STORAGE, str(home), self.server(index), [self.server(member) for member in named])

    def _prepare_again(self, index: int) -> None:
        """A server does not start with what it has seen of the ensemble as long as it is no member itself."""
        settings = (self._home(index) / "zoo.cfg").read_text()
        seen = re.search("^dynamicConfigFile=(.*)$", settings, re.MULTILINE)
        assert seen is not None
        configuration = parse_configuration(Path(seen[1]).read_text())
        if configuration.find(index + 1) is None:
            write_server_files(STORAGE, str(self._home(index)), self.server(index), configuration.servers)

    def _launch(self, index: int) -> None:
        if self._changeable:
            self._prepare_again(index)
        is_alone = len(self.ports) == 1 and not self._changeable
        main_class = "ZooKeeperServerMain" if is_alone else "quorum.QuorumPeerMain"
        command = java_command(
            self._java,
            _JAVA_OPTIONS,
            f"org.apache.zookeeper.server.{main_class}",
            self._home(index) / "zoo.cfg",
            zookeeper_jars(),
        )
        with self._log(index).open("ab") as log:
            self._processes[index] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )


def expire_session(coordination: Coordination) -> None:
    """Let the server end the session, as it does when it heard nothing for too long.

    Somebody else takes the session over and closes it; the client finds out when it reconnects.
    """
    thief = KazooClient(coordination.connect_string, client_id=coordination.client.client_id)
    thief.start(timeout=120)
    thief.stop()
    thief.close()
