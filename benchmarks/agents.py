"""Agents: files that go from agent to agent, in the clear and over TLS, beside a plain copy over loopback."""

from __future__ import annotations

import hashlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.agent.agent_workers import AgentWorkers
from epochlake.jobs.agent.asking import nodes_of, state_of
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.messages import Seen
from epochlake.jobs.agent.running import tls_of
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.copying import file_copy
from epochlake.jobs.replicas.files import DataFile, directory_of, new_file_id, path_of
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import sealed_writer
from epochlake.jobs.replicas.streaming import THREADS, Copier
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.storage import places
from epochlake.placement.tokens import MIN_TOKEN, TOKEN

from benchmarks.clusters import opened
from benchmarks.harness import STORAGE, Result, Target, ratio_at_least

FILES = 4
GROUPS = 8
GROUP_BYTES = 16 << 20
ROUNDS = 5
LABEL = "0-0"
TABLE = "air.streamed"
WAIT_SECONDS = 300.0
BUFFER = 1 << 20


def streaming() -> list[Result]:
    """Four files of 134 MB from the volume of one node to that of another: by their agents, each file proved by its
    digest and on the disk, in the clear and over TLS; and over a connection of loopback by the least that does as much.
    """
    with opened() as (cluster, directory):
        create_table(cluster, TABLE, [("id", "bigint", False), ("data", "binary", True)], ["id"], tablets=1)
        metadata = cluster.catch_up()
        table = metadata.table(TABLE)
        source, target = (
            address_of(STORAGE, metadata, table, metadata.node(name).volumes[0].volume_id) for name in ("n1", "n2")
        )
        files = [_stored(source) for _ in range(FILES)]
        stored = Path(target.uri, directory_of(LABEL))
        copied = directory / "copied"
        copied.mkdir()
        certificate = _certificate(directory)
        # Two agents of each node, which do not know each other: those with TLS talk to nobody else.
        with (
            _agents(cluster, directory / "clear") as clear,
            _agents(cluster, directory / "encrypted", certificate) as encrypted,
            _loopback() as port,
        ):
            workers = {
                "agents": AgentWorkers(clear, HttpClient(), lambda: cluster.metadata),
                "encrypted": AgentWorkers(encrypted, _client(certificate), lambda: cluster.metadata),
            }
            copiers = {name: Copier(one) for name, one in workers.items()}

            def by_agents(name: str) -> None:
                arrived = copiers[name].copy([file_copy(file, source, target) for file in files])
                assert not arrived.failed

            def by_hand() -> None:
                paths = [places.join(source.uri, file.path) for file in files]
                ThreadWorkers(THREADS).run(partial(_received, port, copied), paths)
                _sync(copied)

            def emptied(work: Callable[[], None]) -> Callable[[], float]:
                def timed() -> float:
                    for place in (stored, copied):
                        for path in place.glob("*") if place.exists() else ():
                            path.unlink()
                    began = time.perf_counter()
                    work()
                    return time.perf_counter() - began

                return timed

            works = {name: emptied(partial(by_agents, name)) for name in copiers} | {"hand": emptied(by_hand)}
            taken: dict[str, list[float]] = {name: [] for name in works}
            for turn in range(ROUNDS + 1):
                for name in sorted(works, reverse=bool(turn % 2)):
                    seconds = works[name]()
                    if turn:
                        taken[name].append(seconds)
            for one in workers.values():
                assert one.by_itself == 0
                assert one.by_agents == FILES * (ROUNDS + 1)
    megabytes = sum(file.size for file in files) / 1e6

    def beside(name: str, what: str, target: Target | None) -> Result:
        return Result(
            what,
            megabytes / statistics.median(taken[name]),
            "MB/s",
            megabytes / statistics.median(taken["hand"]),
            "copied over loopback, hashed and synced",
            target,
        )

    streamed = f"agents stream {megabytes:.0f} MB in {FILES} files"
    return [
        beside("agents", streamed, ratio_at_least(0.8)),
        # The copy beside it is not encrypted, so it is no target.
        beside("encrypted", f"{streamed}, over TLS", None),
    ]


def _stored(address: ReplicaAddress) -> DataFile:
    """A sealed file of bytes that no compression makes smaller, staged and not committed."""
    file_id, width = new_file_id(), 1 << 10
    uri = places.join(address.uri, path_of(LABEL, file_id))
    address.storage.create_directory(uri.rpartition("/")[0])
    count = GROUP_BYTES // width
    schema = pa.schema([("id", pa.int64()), ("data", pa.binary()), (TOKEN, pa.int64()), (WRITTEN_AT, pa.int64())])
    schema = schema.append(pa.field(DELETED, pa.bool_()))
    with address.storage.new_file(uri) as sink, sealed_writer(sink, schema, file_id) as writer:
        for group in range(GROUPS):
            numbers = range(group * count, (group + 1) * count)
            columns = [
                pa.array(numbers, pa.int64()),
                pa.array([os.urandom(width) for _ in numbers], pa.binary()),
                pa.array([MIN_TOKEN + number for number in numbers], pa.int64()),
                pa.array([1] * count, pa.int64()),
                pa.array([False] * count, pa.bool_()),
            ]
            writer.write(pa.Table.from_arrays(columns, schema=schema))
    rows = GROUPS * count
    size = address.storage.size_of(uri) or 0
    path = path_of(LABEL, file_id)
    return DataFile(file_id, LABEL, path, size, rows, MIN_TOKEN, MIN_TOKEN + rows - 1, 1, 1, False)


def _received(port: int, directory: Path, path: str) -> str:
    """A file over a connection: hashed while it comes, stored beside its name, synced, and renamed; its digest."""
    found, buffer = hashlib.sha256(), memoryview(bytearray(BUFFER))
    target = directory / Path(path).name
    beside = target.with_suffix(".new")
    with socket.create_connection(("127.0.0.1", port)) as connection, open(beside, "wb", buffering=0) as file:
        connection.sendall(f"{path}\n".encode())
        while got := connection.recv_into(buffer):
            found.update(buffer[:got])
            file.write(buffer[:got])
        os.fsync(file.fileno())
    beside.rename(target)
    return found.hexdigest()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@contextmanager
def _loopback() -> Iterator[int]:
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.loopback_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()


@contextmanager
def _agents(cluster: Cluster, directory: Path, certificate: Path | None = None) -> Iterator[list[str]]:
    """The agents of the first two nodes, which follow the log and know each other; where they are. With a certificate
    they speak TLS.
    """
    directory.mkdir()
    tls = [] if certificate is None else [f"--tls-{what}={path}" for what, path in _tls_files(certificate).items()]
    client = _client(certificate)
    started: list[subprocess.Popen[bytes]] = []
    addresses: list[str] = []
    try:
        for name in ("n1", "n2"):
            words = ["--home", str(directory / f"home-{name}"), "--name", name, "--listen", "127.0.0.1:0"]
            words += ["--root", cluster.configuration.root, *(("--seed", addresses[0]) if addresses else ()), *tls]
            command = [sys.executable, "-P", "-m", "epochlake.jobs.agent", *words]
            agent = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            started.append(agent)
            assert agent.stdout is not None
            addresses.append(agent.stdout.readline().decode().strip().partition("listens on ")[2])
        _wait_until(lambda: all(_is_ready(address, client, cluster.metadata.epoch) for address in addresses))
        yield addresses
    finally:
        for agent in started:
            agent.kill()
            agent.wait()


def _certificate(directory: Path) -> Path:
    """A certificate for 127.0.0.1 that is its own authority; its key lies beside it."""
    made = directory / "agents.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=agents", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command += ["-keyout", str(made.with_suffix(".key")), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made


def _tls_files(certificate: Path) -> dict[str, str]:
    return {"certificate": str(certificate), "key": str(certificate.with_suffix(".key")), "authority": str(certificate)}


def _client(certificate: Path | None) -> HttpClient:
    if certificate is None:
        return HttpClient()
    _, asking = tls_of(**_tls_files(certificate))
    return HttpClient(tls=asking)


def _is_ready(address: str, client: HttpClient, epoch: int) -> bool:
    try:
        alive = [node for node in nodes_of(address, client) if node.seen is Seen.ALIVE]
        return len(alive) == 2 and state_of(address, client).log.epoch >= epoch
    except AgentUnreachable:
        return False


def _wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError("the agents do not know of each other, or of the log")
        time.sleep(0.2)


BENCHMARKS = {"streaming": streaming}
