"""Orders and reads of those who are no friends: refused, logged, and harmless."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from epochlake.jobs.agent.agent_workers import AgentFailed, MergesUnknown, _Agents, _Limits, _Order
from epochlake.jobs.agent.file_serving import CHUNK, MOST_READS, FileServing
from epochlake.jobs.agent.home import View
from epochlake.jobs.agent.http_client import HttpClient
from epochlake.jobs.agent.http_server import HttpServer, Refused, Request, Response, Streamed
from epochlake.jobs.agent.messages import LARGEST, PROTOCOL, LoggedNode, Refusal, VolumePlace
from epochlake.jobs.agent.remote_files import Asker, RemoteStorage, fetch
from epochlake.jobs.agent.running import tls_of
from epochlake.jobs.agent.task_messages import (
    MOST_TASKS,
    MergeSource,
    MergeWork,
    ReplicaPlace,
    ResolvedPlace,
    Task,
    TaskAnswer,
    TaskKind,
    TaskOrder,
    is_stored_file,
)
from epochlake.jobs.agent.tasking import MOST_OPEN, Tasking
from epochlake.jobs.agent.tasking import _Order as TakenOrder
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.files import cut_id
from epochlake.jobs.replicas.intervals import FilePart
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.sealing import require_intact
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.placement.tokens import TABLET

from tests.support.replicas import CLUSTER_ID, TABLE, make_replica, store
from tests.support.storages import STORAGE
from tests.unit.jobs.agent.test_agent_options import certificate
from tests.unit.jobs.agent.test_hostile_peers import MINE, OTHER, Served, play

PATH = "air/t-1/_tablet=2-1/0c6f.parquet"
FILE = {"file_id": "0c6f", "path": "_tablet=2-1/0c6f.parquet", "size": 3}
HERE = ReplicaPlace("n1", "d1", 1, "air", "t-1")
THERE = ReplicaPlace("n2", "d1", 2, "air", "t-1")


def task(number: int = 0, **more: Any) -> Task:
    file = msgspec.Raw(json.dumps(more.pop("file", FILE)).encode())
    given = {"kind": TaskKind.COPY, "low": 0, "high": 1, "target": HERE, "source": THERE, **more}
    return Task(number=number, file=file, **given)


def order(*tasks: Task, **more: Any) -> TaskOrder:
    return TaskOrder(**{"tag": MINE, "protocol": PROTOCOL, "nonce": "n", "order_id": "o", "tasks": tasks, **more})


def member_of(served: Served, volume: Path) -> None:
    """Let the agent follow a log that names its volume, and a node whose agent nobody knows."""
    nodes = (
        LoggedNode("n1", "h1", "normal", "dc1", "r1", (VolumePlace("d1", str(volume)), VolumePlace("s3", "s3://b/d"))),
        LoggedNode("n2", "h2", "normal", "dc1", "r2", (VolumePlace("d1", "/elsewhere"),)),
    )
    served.agent.view = View(MINE, 3, "h", 1, 0.0, nodes)


MERGE = MergeWork(
    table=msgspec.Raw(b"{}"),
    label="1-0",
    sources=(MergeSource(FILE["path"], 0, 1, True),),  # type: ignore[arg-type]
    purge_before=0,
    expired_before={},
    target_file_bytes=1,
)


def merge(**more: Any) -> TaskOrder:
    """An order to merge what is said of it otherwise."""
    like: dict[str, Any] = {"kind": TaskKind.MERGE, "source": None, "file": None}
    given = {name: more.pop(name) for name in ("low", "high", "source", "kind", "target") if name in more}
    return order(task(**{**like, **given}, merge=msgspec.structs.replace(MERGE, **more)))


def merge_of(path: str = str(FILE["path"]), low: int = 0, high: int = 1) -> TaskOrder:
    return merge(sources=(MERGE.sources[0], MergeSource(path, low, high, True)))


def renamed(**more: str) -> dict[str, Any]:
    return {**FILE, **more}


REFUSED: dict[str, tuple[TaskOrder | bytes, int, str]] = {
    "another cluster": (order(task(), tag=OTHER), 409, "cluster-tag"),
    "another protocol": (order(task(), protocol=9), 409, "protocol"),
    "no order": (b'{"tag": 1}', 400, "malformed"),
    "nesting without end": (b"[" * 100_000, 400, "malformed"),
    "an order that nobody has given": (order(), 409, "unknown-order"),
    "too many tasks": (order(*(task(number) for number in range(MOST_TASKS + 1))), 400, "malformed"),
    "two tasks of one number": (order(task(), task()), 400, "malformed"),
    "a long id": (order(task(), order_id="o" * 300), 400, "malformed"),
    "an epoch without end": (order(task(), epoch=2**60), 400, "malformed"),
    "a volume that it may know later": (
        order(task(target=msgspec.structs.replace(HERE, volume="d9")), epoch=4),
        409,
        "behind",
    ),
    "a negative pace": (order(task(), bytes_per_second=-1.0), 400, "malformed"),
    "a directory that is a path": (
        order(task(target=msgspec.structs.replace(HERE, directory="../../etc"))),
        400,
        "malformed",
    ),
    "a table that is the parent": (order(task(target=msgspec.structs.replace(HERE, table_id=".."))), 400, "malformed"),
    "a log of Delta": (order(task(target=msgspec.structs.replace(HERE, table_id="_delta_log"))), 400, "malformed"),
    "a source that is a path": (order(task(source=msgspec.structs.replace(THERE, table_id="a/b"))), 400, "malformed"),
    "a file outside": (order(task(file=renamed(path="../../0c6f.parquet"))), 400, "malformed"),
    "an absolute file": (order(task(file=renamed(path="/etc/0c6f.parquet"))), 400, "malformed"),
    "a file of the log": (order(task(file=renamed(path="_delta_log/0c6f.parquet"))), 400, "malformed"),
    "a file of another name": (order(task(file=renamed(file_id="1"))), 400, "malformed"),
    "a hidden file": (order(task(file=renamed(file_id=".x", path="_tablet=2-1/.x.parquet"))), 400, "malformed"),
    "no file": (order(task(file=[1])), 400, "malformed"),
    "a copy from nowhere": (order(task(source=None)), 400, "malformed"),
    "a check from somewhere": (order(task(kind=TaskKind.CHECK)), 400, "malformed"),
    "a merge of nothing": (merge(sources=()), 400, "malformed"),
    "a merge without a word of it": (order(task(kind=TaskKind.MERGE, source=None)), 400, "malformed"),
    "a copy with a merge": (order(task(merge=MERGE)), 400, "malformed"),
    "a merge of another's files": (merge(source=THERE), 400, "malformed"),
    "a merge in a table that is the parent": (
        merge(target=msgspec.structs.replace(HERE, table_id="..")),
        400,
        "malformed",
    ),
    "a merge of a file outside": (merge_of("../../0c6f.parquet"), 400, "malformed"),
    "a merge of an absolute file": (merge_of("/etc/0c6f.parquet"), 400, "malformed"),
    "a merge of a file of the log": (merge_of("_delta_log/0c6f.parquet"), 400, "malformed"),
    "a merge of no tokens": (merge_of(low=1, high=0), 400, "malformed"),
    "a merge of tokens without end": (merge_of(high=2**63), 400, "malformed"),
    "a merge for no tokens": (merge(low=2, high=1), 400, "malformed"),
    "a merge that ends at no time": (merge(purge_before=-(2**64)), 400, "malformed"),
    "a merge of a time without end": (merge(expired_before={"at": 2**63}), 400, "malformed"),
    "a merge into files of no size": (merge(target_file_bytes=0), 400, "malformed"),
    "a merge with a label without end": (merge(label="l" * 300), 400, "malformed"),
    "a merge on another node": (merge(target=THERE), 409, "not-here"),
    "a volume of another node": (order(task(target=THERE)), 409, "not-here"),
    "a volume that the log does not name": (
        order(task(target=msgspec.structs.replace(HERE, volume="d9"))),
        409,
        "not-here",
    ),
    "a volume on no disk": (order(task(target=msgspec.structs.replace(HERE, volume="s3"))), 409, "not-here"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_order_of_no_friend_is_refused_and_logged_and_nothing_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    given, status, code = REFUSED[what]
    body = given if isinstance(given, bytes) else msgspec.json.encode(given)
    volume = tmp_path / "d1"
    volume.mkdir()

    async def scene(served: Served) -> None:
        member_of(served, volume)
        served.agent.orders._seconds = 0.0
        answered, received = await served.post("/tasks", body)
        assert (answered, msgspec.json.decode(received, type=Refusal).code) == (status, code)
        assert served.server.refused[code] == 1
        assert served.agent.tasking.pid is None

    play(tmp_path / "home", scene)
    assert f"({code})" in caplog.text
    assert not list(volume.iterdir())


def test_an_agent_of_no_cluster_takes_no_order_and_gives_no_file(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        served.agent.tag = None
        served.agent.orders._seconds = 0.0
        for asked in (served.post("/tasks", msgspec.json.encode(order(task()))), get(served, volume="d1", path=PATH)):
            status, received = await asked
            assert (status, msgspec.json.decode(received, type=Refusal).code) == (409, "blank")

    play(tmp_path, scene)


def test_without_the_token_there_is_no_order_and_no_file(tmp_path: Path) -> None:
    token = "0123456789abcdef"

    async def scene(served: Served) -> None:
        member_of(served, tmp_path)
        for given in (None, token[:-1] + "x"):
            for asked in (
                served.post("/tasks", msgspec.json.encode(order(task())), token=given),
                get(served, token=given, volume="d1", path=PATH),
            ):
                status, received = await asked
                assert (status, msgspec.json.decode(received, type=Refusal).code) == (401, "token")
        assert (await served.post("/tasks", msgspec.json.encode(order()), token=token))[0] == 409

    play(tmp_path / "home", scene, token=token)


def test_an_order_is_bounded_in_bytes_and_an_agent_in_tasks(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        member_of(served, tmp_path)
        head = f"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGEST + 1}\r\n\r\n"
        assert b" 413 " in (await served.raw(head.encode())).splitlines()[0]
        tasking = served.agent.tasking
        tasking._works = dict.fromkeys(range(MOST_OPEN), (None, 0))  # type: ignore[assignment]
        status, received = await served.post("/tasks", msgspec.json.encode(order(task())))
        assert (status, msgspec.json.decode(received, type=Refusal).code) == (503, "too-many")

    play(tmp_path / "home", scene)


def test_tasks_that_nobody_asks_about_any_more_make_room_for_others() -> None:
    async def scene() -> None:
        tasking = Tasking([], asked_seconds=-1.0)
        forgotten = tasking._orders["forgotten"] = TakenOrder()
        forgotten.open = {number: number + 1 for number in range(MOST_OPEN)}
        tasking._works = {number + 1: (forgotten, number) for number in range(MOST_OPEN)}
        assert tasking.has_room(MOST_OPEN)
        assert (forgotten.changed.is_set(), forgotten.open, tasking._works) == (True, {}, {})
        assert tasking._stopping == [number + 1 for number in range(MOST_OPEN)]
        await tasking._tell_to_stop()
        assert (tasking._stopping, tasking.pid) == ([], None)

    asyncio.run(scene())


def test_nobody_has_an_agent_ask_at_a_place_that_is_no_agent_of_the_node(tmp_path: Path) -> None:
    """Where a source is, the agent finds out by itself: an order names a node, never an address."""

    async def scene(served: Served) -> None:
        member_of(served, tmp_path)
        status, received = await served.post("/tasks", msgspec.json.encode(order(task())))
        answer = msgspec.json.decode(received, type=TaskAnswer)
        assert (status, answer.running, answer.nonce) == (200, False, "n")
        assert [(one.number, one.why) for one in answer.results] == [(0, "no agents of node n2 answer this one")]
        assert served.agent.tasking.pid is None

    play(tmp_path / "home", scene)


async def get(served: Served, token: str | None = None, **query: object) -> tuple[int, bytes]:
    asked = urlencode({"cluster": MINE.id, **query})
    return await HttpClient(token=token).ask(served.agent.address, f"/file?{asked}", timeout=20)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume with a data file of 100 bytes, and what is nobody's business beside it."""
    made = tmp_path / "d1"
    (made / PATH).parent.mkdir(parents=True)
    (made / PATH).write_bytes(bytes(range(100)))
    (made / "air/t-1/_delta_log").mkdir()
    (made / "air/t-1/_delta_log/00000000000000000000.json").write_text("secret")
    (made / "epochlake-volume.json").write_text("secret")
    (tmp_path / "secret.parquet").write_text("secret")
    return made


def test_a_data_file_is_given_whole_and_in_parts(tmp_path: Path, volume: Path) -> None:
    async def scene(served: Served) -> None:
        member_of(served, volume)
        whole = bytes(range(100))
        for more, expected in (
            ({}, whole),
            ({"from": 40}, whole[40:]),
            ({"from": -8}, whole[-8:]),
            ({"from": -800}, whole),
            ({"from": 10, "size": 5}, whole[10:15]),
            ({"from": 100}, b""),
            ({"from": 10**15}, b""),
            ({"size": 0}, b""),
        ):
            assert await get(served, volume="d1", path=PATH, **more) == (200, expected)
        assert served.agent.serving.served > 0

    play(tmp_path / "home", scene)


NOT_GIVEN = [
    "epochlake-volume.json",
    "air/t-1/_delta_log/00000000000000000000.json",
    "air/t-1/_delta_log/0c6f.parquet",
    "../secret.parquet",
    "air/t-1/_tablet=2-1/../../../../secret.parquet",
    "air/../_tablet=2-1/0c6f.parquet",
    "/air/t-1/_tablet=2-1/0c6f.parquet",
    "air//_tablet=2-1/0c6f.parquet",
    "air/t-1/_tablet=../0c6f.parquet",
    "air/t-1/_tablet=2-1/.0c6f.parquet.tmp-1",
    "air/t-1/_tablet=2-1/0c6f.parquet\x00.json",
    "air/t-1/_tablet=2-1/",
    "..",
    "",
    PATH + "/x",
    "a" * 5000 + PATH,
]


def test_nothing_but_data_files_is_given(tmp_path: Path, volume: Path) -> None:
    assert is_stored_file(PATH)
    assert f"/{TABLET}=" in PATH

    async def scene(served: Served) -> None:
        member_of(served, volume)
        for path in NOT_GIVEN:
            status, received = await get(served, volume="d1", path=path)
            assert (status, msgspec.json.decode(received, type=Refusal).code) == (400, "malformed"), path
        for strange in (
            {"from": "1e3"},
            {"from": "-"},
            {"from": "٣"},
            {"from": "9" * 30},
            {"size": "-1"},
        ):
            status, received = await get(served, volume="d1", path=PATH, **strange)
            assert (status, msgspec.json.decode(received, type=Refusal).code) == (400, "malformed"), strange
        for named in ("d9", "..", ""):
            status, received = await get(served, volume=named, path=PATH)
            assert (status, msgspec.json.decode(received, type=Refusal).code) == (404, "unknown-volume")
        status, received = await get(served, volume="d1", path=PATH, cluster=OTHER.id)
        assert (status, msgspec.json.decode(received, type=Refusal).code) == (409, "cluster-tag")
        assert served.agent.serving.served == 0

    play(tmp_path / "home", scene)


def test_no_link_and_no_pipe_leads_out_of_a_volume(tmp_path: Path, volume: Path) -> None:
    directory = (volume / PATH).parent
    (directory / "1.parquet").symlink_to(tmp_path / "secret.parquet")
    (volume / "air/t-2").symlink_to(volume / "air/t-1")
    os.mkfifo(directory / "2.parquet")
    (directory / "3.parquet").mkdir()

    async def scene(served: Served) -> None:
        member_of(served, volume)
        for name, status in (("1", 403), ("2", 404), ("3", 404), ("4", 404)):
            answered, received = await get(served, volume="d1", path=f"air/t-1/_tablet=2-1/{name}.parquet")
            assert (answered, b"secret" in received) == (status, False), name
        answered, received = await get(served, volume="d1", path=PATH.replace("t-1", "t-2"))
        assert answered in (403, 404)
        # None of them has kept its place.
        for _ in range(MOST_READS + 1):
            assert (await get(served, volume="d1", path=PATH))[0] == 200

    play(tmp_path / "home", scene)


def test_who_does_not_take_what_was_asked_for_is_sent_away_and_others_are_served(tmp_path: Path, volume: Path) -> None:
    (volume / PATH).write_bytes(b"x" * (64 * CHUNK))

    async def scene(served: Served) -> None:
        member_of(served, volume)
        host, port = served.agent.address.split(":")
        head = f"GET /file?volume=d1&path={PATH}&cluster={MINE.id} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

        async def who_does_not_read() -> asyncio.StreamWriter:
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            writer.write(head)
            return writer

        server, serving = served.server, served.agent.serving
        server._seconds = 0.5
        slow = [await who_does_not_read() for _ in range(MOST_READS)]
        while serving._reading or server.refused["gone"] + server.refused["slow"] < MOST_READS:
            await asyncio.sleep(0.01)
        server._seconds = 60.0
        slow += [await who_does_not_read() for _ in range(MOST_READS)]
        while serving._reading < MOST_READS:
            await asyncio.sleep(0.01)
        status, received = await get(served, volume="d1", path=PATH)
        assert (status, msgspec.json.decode(received, type=Refusal).code) == (503, "too-many")
        assert await served.lives()
        for writer in slow:
            writer.transport.abort()
        while serving._reading:
            await asyncio.sleep(0.01)
        status, received = await get(served, volume="d1", path=PATH, size=CHUNK)
        assert (status, len(received)) == (200, CHUNK)

    play(tmp_path / "home", scene)


def test_a_disk_that_hangs_keeps_no_other_one_from_being_read(tmp_path: Path, volume: Path) -> None:
    released = threading.Event()
    other = tmp_path / "d2"
    (other / PATH).parent.mkdir(parents=True)
    (other / PATH).write_bytes(b"well")

    def opening(directory: str, path: str) -> int:
        if directory == str(volume):
            released.wait()
        return os.open(f"{directory}/{path}", os.O_RDONLY)

    async def scene() -> None:
        serving = FileServing(deadline=0.2, opening=opening)

        async def read(of: Path) -> bytes:
            answer = await serving.read(str(of), PATH, 0, None, "id")
            return b"".join([chunk async for chunk in answer.chunks])

        for _ in range(MOST_READS + 1):
            with pytest.raises(Refused) as refused:
                await read(volume)
            assert refused.value.refusal.code == "hanging"
        assert len([t for t in threading.enumerate() if t.name == "read-for-agent"]) == 1
        serving._deadline = 120.0
        assert await read(other) == b"well"
        released.set()
        while serving._hanging[str(volume)]:
            await asyncio.sleep(0.01)
        assert await read(volume) == bytes(range(100))

    try:
        asyncio.run(scene())
    finally:
        released.set()


Lie = Callable[[Request], Awaitable[Response | Streamed]]


async def lying(answer: Lie, scene: Callable[[str], Any]) -> Any:
    """What a scene in a thread makes of a server that answers so, by its address."""
    server = HttpServer(answer)
    port = await server.start("127.0.0.1", 0)
    try:
        return await asyncio.to_thread(scene, f"127.0.0.1:{port}")
    finally:
        await server.stop()


async def chunks_of(data: bytes) -> Any:
    yield data


LIES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "torn": lambda true, other: true[:-40] + b"\0" * 40,
    "a flipped bit": lambda true, other: bytes([*true[:30], true[30] ^ 1, *true[31:]]),
    "another file, whole": lambda true, other: other,
    "nothing": lambda true, other: b"",
    "zeros": lambda true, other: b"\0" * len(true),
}


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "a piece"])
@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_the_file_that_was_asked_for_gets_no_name(tmp_path: Path, lie: str, whole: bool) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file, other = store(source, ids=range(50)), store(source, ids=range(50))
    true, replayed = (Path(source.uri, one.path).read_bytes() for one in (file, other))
    data = LIES[lie](true, replayed)
    headers = (("Epochlake-Size", str(len(data))), ("Epochlake-Cluster", CLUSTER_ID))

    async def answer(request: Request) -> Response | Streamed:
        start, size = int(request.query["from"]), request.query.get("size")
        part = data[start:] if size is None else data[start : start + int(size)]
        return Streamed(len(part), chunks_of(part), headers)

    def scene(address: str) -> None:
        copy_from(address, source, target, file, whole=whole)

    with pytest.raises(StorageUnavailable):
        asyncio.run(lying(answer, scene))
    assert not list(Path(target.uri).rglob("*.parquet*")), "something of it was stored"


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "a piece"])
def test_what_is_the_file_that_was_asked_for_is_stored_and_stays(tmp_path: Path, whole: bool) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source, ids=range(50))
    data = Path(source.uri, file.path).read_bytes()
    headers = (("Epochlake-Size", str(len(data))), ("Epochlake-Cluster", CLUSTER_ID))
    asked = 0

    async def answer(request: Request) -> Response | Streamed:
        nonlocal asked
        asked += 1
        start, size = int(request.query["from"]), request.query.get("size")
        part = data[start:] if size is None else data[start : start + int(size)]
        return Streamed(len(part), chunks_of(part), headers)

    def scene(address: str) -> None:
        copy_from(address, source, target, file, whole=whole)
        [stored] = Path(target.uri).rglob("*.parquet")
        if whole:
            assert stored.read_bytes() == data
            assert require_intact(STORAGE, file, str(stored)) is not None
        once = asked
        copy_from(address, source, target, file, whole=whole)
        assert asked == once, "what is there already was asked for again"

    asyncio.run(lying(answer, scene))


def test_a_piece_that_comes_late_leaves_the_one_that_is_there_by_then(tmp_path: Path) -> None:
    """Two who cut it may make other bytes, and the first may have been committed with its size."""
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source, ids=range(50))
    part = FilePart(file, file.min_token, file.min_token + 9)
    piece = Path(target.uri, file.path).parent / f"{cut_id(file.origin, part.low, part.high)}.parquet"
    data = Path(source.uri, file.path).read_bytes()

    async def answer(request: Request) -> Response | Streamed:
        start, size = int(request.query["from"]), request.query.get("size")
        part = data[start:] if size is None else data[start : start + int(size)]
        headers = (("Epochlake-Size", str(len(data))), ("Epochlake-Cluster", CLUSTER_ID))
        return Streamed(len(part), chunks_of(part), headers)

    def somebody_else(size: int) -> None:
        piece.parent.mkdir(exist_ok=True)
        piece.write_bytes(b"what somebody else has put")

    def scene(address: str) -> None:
        place = ResolvedPlace(CLUSTER_ID, "d1", 1, source.volume_uri, TABLE.keyspace, TABLE.table_id, address)
        remote = RemoteStorage(Asker(), place, somebody_else, StorageSettings(), target)
        there = ReplicaAddress(remote, CLUSTER_ID, 1, source.volume_uri, TABLE.keyspace, TABLE.table_id)
        with pytest.raises(StorageUnavailable):
            cut(there, part, target)

    asyncio.run(lying(answer, scene))
    assert piece.read_bytes() == b"what somebody else has put"
    assert [path.name for path in piece.parent.iterdir()] == [piece.name]


def test_an_agent_of_another_cluster_is_not_believed(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source)
    data = Path(source.uri, file.path).read_bytes()

    async def answer(request: Request) -> Response | Streamed:
        return Streamed(len(data), chunks_of(data), (("Epochlake-Size", str(len(data))), ("Epochlake-Cluster", "2")))

    def scene(address: str) -> None:
        with pytest.raises(StorageUnavailable, match="another cluster"):
            copy_from(address, source, target, file)

    asyncio.run(lying(answer, scene))


def copy_from(address: str, source: ReplicaAddress, target: ReplicaAddress, file: Any, *, whole: bool = True) -> None:
    """Store a file, or the first ten rows of it, of the agent at an address."""
    place = ResolvedPlace(CLUSTER_ID, "d1", 1, source.volume_uri, TABLE.keyspace, TABLE.table_id, address)
    remote = RemoteStorage(Asker(), place, lambda size: None, StorageSettings(), target)
    there = ReplicaAddress(remote, CLUSTER_ID, 1, source.volume_uri, TABLE.keyspace, TABLE.table_id)
    if whole:
        fetch(file, there, target, lambda size: None)
    else:
        cut(there, FilePart(file, file.min_token, file.min_token + 9), target)


def test_files_are_given_over_tls_to_who_has_a_certificate_and_the_token_and_arrive_whole(tmp_path: Path) -> None:
    mine, other = certificate(tmp_path, "mine"), certificate(tmp_path, "other")
    serving, asking = tls_of(*mine)
    _, stranger = tls_of(other[0], other[1], mine[2])
    data, token = os.urandom(5 * CHUNK + 1), "0123456789abcdef"
    place = ResolvedPlace("id", "d1", 1, "/v1", "air", "t-1")
    serving_files = FileServing()
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_bytes(data)

    async def answer(request: Request) -> Response | Streamed:
        return await serving_files.read(str(tmp_path), PATH, 0, None, "id")

    def scene(address: str) -> None:
        there = msgspec.structs.replace(place, address=address)
        given, connection = Asker(token, asking).open(there, PATH, 0, None)
        # It is read after the agent has sent what fits, and lost none of it.
        time.sleep(0.1)
        assert given.read() == data
        connection.close()
        for asker in (Asker(None, asking), Asker(token[:-1] + "x", asking), Asker(token, stranger), Asker(token)):
            with pytest.raises(StorageUnavailable):
                asker.open(there, PATH, 0, None)

    async def staged() -> None:
        server = HttpServer(answer, token=token, tls=serving, seconds=120.0)
        port = await server.start("127.0.0.1", 0)
        try:
            await asyncio.to_thread(scene, f"127.0.0.1:{port}")
        finally:
            await server.stop()

    asyncio.run(staged())
    assert serving_files.served == len(data)


def test_a_long_answer_arrives_whole_where_it_is_not_read_at_once(tmp_path: Path) -> None:
    data = os.urandom(16 * CHUNK)

    async def answer(request: Request) -> Response | Streamed:
        return Response(200, data)

    async def scene() -> None:
        server = HttpServer(answer, seconds=120.0)
        port = await server.start("127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.2)
            received = await reader.read()
            assert received.partition(b"\r\n\r\n")[2] == data
            writer.close()
        finally:
            await server.stop()

    asyncio.run(scene())


ANSWERS: dict[str, tuple[Callable[[TaskOrder], object], str]] = {
    "replayed": (lambda asked: TaskAnswer(MINE, "n1", "before", (), False, 0), "another question"),
    "of another cluster": (lambda asked: TaskAnswer(OTHER, "n1", asked.nonce, (), False, 0), "in cluster sea"),
    "of another node": (lambda asked: TaskAnswer(MINE, "n7", asked.nonce, (), False, 0), "of node n7"),
    "rubbish": (lambda asked: {"hello": 1}, "cannot be understood"),
    "always running": (lambda asked: TaskAnswer(MINE, "n1", asked.nonce, (), True, 0), "none of its tasks went on"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_about_tasks_that_is_none_ends_the_agents_part(what: str) -> None:
    said, why = ANSWERS[what]

    async def answer(request: Request) -> Response:
        return Response(200, msgspec.json.encode(said(msgspec.json.decode(request.body, type=TaskOrder))))

    def scene(address: str) -> None:
        asking = _Order(HttpClient(), address, "n1", order(), _Limits(seconds=60.0, patience=0.3))
        with pytest.raises(AgentFailed, match=why):
            list(asking.done([task()], threading.Event()))

    asyncio.run(lying(answer, scene))


def test_an_agent_of_a_release_before_merges_nothing_and_goes_on_with_all_else() -> None:
    async def answer(request: Request) -> Response:
        return Response(400, msgspec.json.encode(Refusal("malformed", "this is no taskorder: Invalid enum value")))

    def scene(address: str) -> None:
        asking = _Order(HttpClient(), address, "n1", order(), _Limits(seconds=60.0))
        with pytest.raises(MergesUnknown):
            list(asking.done(merge().tasks, threading.Event()))
        with pytest.raises(AgentFailed) as failed:
            list(asking.done([task()], threading.Event()))
        assert not isinstance(failed.value, MergesUnknown)

    asyncio.run(lying(answer, scene))
    known = _Agents([], HttpClient())
    known._known, known._looked = {"n1": "a:1", "n2": "a:2"}, time.monotonic() + 600
    known.cannot_merge("a:1")
    assert known.now(["n1"], TaskKind.MERGE) == {"n2": "a:2"}
    assert known.now(["n1"], TaskKind.CHECK) == known.now(["n1"]) == {"n1": "a:1", "n2": "a:2"}


def test_an_order_waits_until_its_agent_has_followed_the_log_to_what_it_names(tmp_path: Path) -> None:
    later = order(task(target=msgspec.structs.replace(HERE, volume="d9")), epoch=4)

    async def scene(served: Served) -> None:
        member_of(served, tmp_path)
        served.agent.orders._seconds = 120.0
        asked = asyncio.ensure_future(served.post("/tasks", msgspec.json.encode(later)))
        await asyncio.sleep(0.3)
        assert not asked.done()
        assert served.agent.view is not None
        here, there = served.agent.view.nodes
        here = msgspec.structs.replace(here, volumes=(*here.volumes, VolumePlace("d9", str(tmp_path))))
        served.agent.view = msgspec.structs.replace(served.agent.view, epoch=4, nodes=(here, there))
        status, received = await asked
        assert (status, msgspec.json.decode(received, type=TaskAnswer).running) == (200, False)

    play(tmp_path / "home", scene)
