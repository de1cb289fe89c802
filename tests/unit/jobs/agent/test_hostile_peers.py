"""What an agent does with those who are no friends of it: they are refused, it is logged, and it goes on."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from epochlake.jobs.agent.agent import Agent, AgentSettings, opened
from epochlake.jobs.agent.documents import Health
from epochlake.jobs.agent.home import TAG
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.http_server import HttpServer, Request, Response
from epochlake.jobs.agent.initialising import Prepare, Ready
from epochlake.jobs.agent.joining import NOBODY
from epochlake.jobs.agent.messages import LARGEST, PROTOCOL, Answer, Call, Introduction, Refusal, Seen, Sighting, Tag
from epochlake.jobs.agent.routes import OPEN_TO_ALL, Routes

changed = msgspec.structs.replace

MINE, OTHER = Tag("lake", "id-of-the-lake"), Tag("sea", "2")
STRANGER = Introduction("x" * 8, "n9", "127.0.0.1:9", None, PROTOCOL, "0.1.0")


class Served:
    """An agent that answers on a free port, and whoever talks to it."""

    def __init__(self, agent: Agent, server: HttpServer) -> None:
        self.agent, self.server = agent, server

    async def raw(self, sent: bytes, *, end: bool = False) -> bytes:
        host, port = self.agent.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        await writer.drain()
        if end:
            writer.write_eof()
        received = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return received

    async def post(self, path: str, body: bytes, token: str | None = None) -> tuple[int, bytes]:
        return await HttpClient(token=token).ask(self.agent.address, path, body, timeout=20)

    async def lives(self) -> bool:
        status, body = await HttpClient().ask(self.agent.address, "/health", timeout=20)
        return status == 200 and msgspec.json.decode(body, type=Health).status in ("ok", "degraded")


def play(
    home: Path, scene: Callable[[Served], Awaitable[None]], *, token: str | None = None, seconds: float = 10.0
) -> None:
    async def staged() -> None:
        settings = AgentSettings(home=str(home), address="127.0.0.1:0", name="n1")
        agent = opened(settings, HttpClient(token=token))
        agent.home.write(TAG, MINE)
        agent.tag = MINE
        routes = Routes(agent)
        server = HttpServer(routes.answer, token=token, open_to_all=OPEN_TO_ALL, seconds=seconds)
        routes.server = server
        agent.address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        served = Served(agent, server)
        try:
            await scene(served)
            assert await served.lives()
        finally:
            await server.stop()
            agent.home.release()

    asyncio.run(staged())


def call(sender: Introduction = STRANGER, **more: object) -> bytes:
    return msgspec.json.encode(Call(sender, "n-1", **more))  # type: ignore[arg-type]


_CALL = json.loads(call(target="127.0.0.1:22"))
_VOLUME = {"name": "d1", "uri": "/d1", "capacity": 1}
KNOWN: dict[str, dict[str, Any]] = {
    "/handshake": _CALL,
    "/probe": _CALL,
    "/probe-for": _CALL,
    "/discover": {"agent_id": "a", "number": "1", "address": "a:1", "known": ["b:1"], "protocol": PROTOCOL},
    "/join": {
        "sender": _CALL["sender"],
        "nonce": "n",
        "request_id": "r",
        "datacenter": "d",
        "rack": "r",
        "volumes": [_VOLUME],
    },
    "/cancel-join": {},
    "/prepare-init": {"sender": _CALL["sender"], "nonce": "n", "request_id": "r", "root": "/r"},
}
"""What each path is told, as it should be."""


def _places(document: Any) -> Iterator[tuple[str | int, ...]]:
    """Where the values of a document are, one within another too."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (key,)
        if isinstance(value, dict | list):
            yield from ((key, *rest) for rest in _places(value))


def _with(document: Any, where: tuple[str | int, ...], value: object) -> bytes:
    """A document with another value at a place, as JSON; a lone surrogate is escaped, as JSON can say it."""
    changed = copy.deepcopy(document)
    inner = changed
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    return json.dumps(changed).encode()


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "another cluster": (call(msgspec.structs.replace(STRANGER, tag=OTHER)), 409, "cluster-tag"),
    "another protocol": (call(msgspec.structs.replace(STRANGER, protocol=9)), 409, "protocol"),
    "no JSON": (b"hello", 400, "malformed"),
    "another document": (b'{"sender": 7}', 400, "malformed"),
    "nesting without end": (b"[" * 100_000, 400, "malformed"),
    "a name that is a path": (call(msgspec.structs.replace(STRANGER, name="../n1")), 400, "malformed"),
    "a long name": (call(msgspec.structs.replace(STRANGER, name="n" * 300)), 400, "malformed"),
    "no address": (call(msgspec.structs.replace(STRANGER, address="nowhere")), 400, "malformed"),
    "a counter without end": (call(msgspec.structs.replace(STRANGER, counter=2**60)), 400, "malformed"),
    "features without end": (call(msgspec.structs.replace(STRANGER, features=("f" * 99,) * 999)), 400, "malformed"),
    "a long version": (call(msgspec.structs.replace(STRANGER, product_version="1" * 999)), 400, "malformed"),
    "a long tag": (call(msgspec.structs.replace(STRANGER, tag=Tag("t", "t" * 999))), 400, "malformed"),
    "an address of two lines": (call(msgspec.structs.replace(STRANGER, address="a\r\nb:1")), 400, "malformed"),
    "too many sightings": (call(sightings=(Sighting("a", "a", "a:1", Seen.ALIVE, 0),) * 17), 400, "malformed"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_peer_that_is_no_friend_is_refused_logged_and_not_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    body, status, code = REFUSED[what]

    async def scene(served: Served) -> None:
        answered, received = await served.post("/probe", body)
        assert (answered, msgspec.json.decode(received, type=Refusal).code) == (status, code)
        assert not served.agent.membership.peers
        assert served.server.refused[code] == 1

    play(tmp_path, scene)
    assert f"({code})" in caplog.text


def test_a_blank_agent_may_talk_to_a_member(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        status, body = await served.post("/handshake", call())
        answer = msgspec.json.decode(body, type=Answer)
        assert (status, answer.nonce, answer.sender.tag) == (200, "n-1", MINE)
        assert list(served.agent.membership.peers) == [STRANGER.agent_id]

    play(tmp_path, scene)


def test_the_copy_of_a_home_is_told_from_the_agent_itself(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        twin = msgspec.structs.replace(served.agent.introduction(), address="127.0.0.1:9")
        status, body = await served.post("/probe", call(twin))
        assert (status, msgspec.json.decode(body, type=Refusal).code) == (409, "same-id")

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/snapshots/../../identity.json",
        "/snapshots/..%2f..%2ftag.json",
        "/snapshots/1/../../lock",
        "/log/entries",
        "/snapshots/٣",
    ],
)
def test_paths_lead_nowhere_but_to_what_is_served(tmp_path: Path, path: str) -> None:
    async def scene(served: Served) -> None:
        received = await served.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert received.split(b" ")[1] in (b"400", b"404")
        assert MINE.id.encode() not in received

    play(tmp_path, scene)


STRANGE = [
    "//[",
    "//[::1",
    "http://[/state",
    "/log?after=%",
    "/log?after=%FF",
    "/log?after=-1",
    "/log?after=1.5",
    "/log?after=1e3",
    "/log?after=" + "9" * 400,
    "/log?after=%00",
    "/log?" + "&".join(["after=1"] * 2000),
    "/log?after=9999999999999999999",
    "/snapshots/-1",
    "/snapshots/%31",
    "/snapshots/99999999999999999999",
    "/snapshots/" + "9" * 4000,
    "/%zz",
    "/%00",
    "?",
    "*",
    "/" + "a" * 9000,
]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_strange_target_is_refused_and_no_failure_of_the_agent(tmp_path: Path, method: str) -> None:
    async def scene(served: Served) -> None:
        for target in STRANGE:
            received = await served.raw(f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            status = int(received.split(b" ")[1])
            assert status in (200, 400, 404), (target[:40], status)
            assert method == "GET" or status != 200, target[:40]

    play(tmp_path, scene)


def test_strange_words_in_a_body_are_refused_and_no_failure_of_the_agent(tmp_path: Path) -> None:
    words = ["\x00", "\ud800", "n" * 5000, "[::1:1", "a:" + "9" * 240]
    numbers = [-1, 2**64, None]

    async def scene(served: Served) -> None:
        for path, known in KNOWN.items():
            for where in _places(known):
                for value in [*words, *numbers, []]:
                    status, _ = await served.post(path, _with(known, where, value))
                    assert status in (200, 400, 409), (path, where, value)

    play(tmp_path, scene)


def test_bodies_and_heads_are_bounded_whatever_is_announced(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        head = "POST /probe HTTP/1.1\r\nHost: x\r\n"
        announced = await served.raw(f"{head}Content-Length: {LARGEST + 1}\r\n\r\n".encode())
        assert b" 413 " in announced.splitlines()[0]
        negative = await served.raw(f"{head}Content-Length: -1\r\n\r\n".encode())
        assert b" 400 " in negative.splitlines()[0]
        many = await served.raw(f"{head}{'X-A: b' * 20_000}\r\n\r\n".encode())
        assert b" 431 " in many.splitlines()[0]
        assert served.server.refused["too-large"] == 1

    play(tmp_path, scene)


def test_a_body_in_pieces_is_bounded_too(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        sent = b"POST /probe HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + piece * 17
        try:
            received = await served.raw(sent)
        except ConnectionError:
            received = b"HTTP/1.1 413 "
        assert received == b"" or b" 413 " in received.splitlines()[0]
        assert served.server.refused["too-large"] == 1

    play(tmp_path, scene)


def test_a_slow_client_is_sent_away_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        slow = asyncio.ensure_future(served.raw(b"POST /probe HTTP/1.1\r\nHost: x\r\n"))
        await asyncio.sleep(0.05)
        assert await served.lives()
        assert b" 408 " in (await slow).splitlines()[0]
        assert served.server.refused["slow"] == 1

    play(tmp_path, scene, seconds=0.5)


def test_without_the_token_only_health_is_answered(tmp_path: Path) -> None:
    token = "0123456789abcdef"

    async def scene(served: Served) -> None:
        for given in (None, "0123456789abcdeX", token + "x"):
            status, body = await served.post("/probe", call(), token=given)
            assert (status, msgspec.json.decode(body, type=Refusal).code) == (401, "token")
        assert (await served.post("/probe", call(), token=token))[0] == 200
        # Who has no token is not listened to: the body is not waited for.
        head = f"POST /probe HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGEST}\r\n\r\n"
        assert b" 401 " in (await served.raw(head.encode())).splitlines()[0]

    play(tmp_path, scene, token=token)


def test_an_agent_knocks_for_others_only_at_doors_of_agents_that_it_knows(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        status, body = await served.post("/probe-for", call(target="127.0.0.1:22"))
        assert (status, msgspec.json.decode(body, type=Refusal).code) == (400, "unknown-target")

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda call: Answer(msgspec.structs.replace(STRANGER, tag=OTHER), call.nonce), "belongs to cluster sea"),
        (lambda call: Answer(STRANGER, "n-0"), "answer to another call"),
        (lambda call: {"hello": 1}, "cannot be understood"),
        (lambda call: Answer(changed(STRANGER, name="../n1"), call.nonce), "no name of a node"),
        (lambda call: Answer(changed(STRANGER, counter=2**60), call.nonce), "below 2**53"),
        (lambda call: Answer(changed(STRANGER, features=("f" * 99,) * 999), call.nonce), "all features"),
        (lambda call: Answer(changed(STRANGER, product_version="1" * 999), call.nonce), "a version"),
        (lambda call: Answer(STRANGER, call.nonce, (Sighting("a", "a", "a\r\nb:1", Seen.ALIVE, 0),)), "no address"),
        (lambda call: Answer(STRANGER, call.nonce, known=("a" * 300 + ":1",)), "255 characters"),
    ],
    ids=[
        "another cluster",
        "replayed",
        "rubbish",
        "a name that is a path",
        "a counter without end",
        "features without end",
        "a long version",
        "a strange address",
        "a long address",
    ],
)
def test_an_answer_of_no_friend_is_not_believed(tmp_path: Path, said: Callable[[Call], object], why: str) -> None:
    async def lies(request: Request) -> Response:
        return Response(200, msgspec.json.encode(said(msgspec.json.decode(request.body, type=Call))))

    async def scene(served: Served) -> None:
        liar = HttpServer(lies)
        port = await liar.start("127.0.0.1", 0)
        try:
            assert await served.agent.reach(f"127.0.0.1:{port}") is None
        finally:
            await liar.stop()
        assert not served.agent.membership.peers
        assert [problem for problem in served.agent.state().problems if why in problem]

    play(tmp_path, scene)


def test_nobody_who_answers_keeps_an_agent_waiting(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def scene(served: Served) -> None:
        served.agent.settings = msgspec.structs.replace(served.agent.settings, timeout=0.2)
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            assert await asyncio.wait_for(served.agent.reach(address), 10) is None

    play(tmp_path, scene)


HEAD = "POST /probe HTTP/1.1\r\nHost: x\r\n"
BROKEN: dict[str, tuple[str, str]] = {
    "no line of HTTP": ("hello\r\n\r\n", "this is no request of HTTP/1.1"),
    "bytes": ("\x00\x01\r\n\r\n", "this is no request of HTTP/1.1"),
    "no host": ("GET / HTTP/1.1\r\n\r\n", "this is no request of HTTP/1.1"),
    "two lengths": (f"{HEAD}Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "this is no request of HTTP/1.1"),
    "a chunk without a size": (f"{HEAD}Transfer-Encoding: chunked\r\n\r\nzz\r\n", "this is no request of HTTP/1.1"),
    "another encoding": (f"{HEAD}Transfer-Encoding: gzip\r\n\r\nabc", "this encoding of a body is not understood"),
    "a long head": (f"{HEAD}A: {'a' * 30_000}\r\n\r\n", "a head has at most 16,384 bytes"),
    "TLS": ("\x16\x03\x01\x02\x00\x01\r\n\r\n", "it speaks TLS, which this agent was not started with"),
    "no path": ("GET //[ HTTP/1.1\r\nHost: x\r\n\r\n", "what is asked for is no path"),
    "nothing": ("", ""),
    "half a head": ("GET / HTTP/1.1\r\nHo", ""),
    "half a body": (f"{HEAD}Content-Length: 10\r\n\r\nabc", ""),
}
"""What comes, and what is said of it: nothing where whoever asked has gone."""


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_request_is_one_line_in_the_log_and_in_words_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    sent, said = BROKEN[what]

    async def scene(served: Served) -> None:
        received = await served.raw(sent.encode("latin-1"), end=True)
        if said:
            body = received.partition(b"\r\n\r\n")[2]
            assert msgspec.json.decode(body, type=Refusal) == Refusal("malformed", said)
        else:
            assert received == b""
        assert dict(served.server.refused) == ({"malformed": 1} if said else {"gone": 1})

    play(tmp_path, scene)
    told = [record.getMessage() for record in caplog.records if "agent.refusals" in record.name]
    assert told == ([f"refused 127.0.0.1 (malformed): {said}"] if said else [])


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "it closed the connection before its answer was there"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "it closed the connection before its answer was there"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "it closed the connection before its answer was there"),
        (b"hello\r\n\r\n", "what comes is no answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\nabc", "what comes is no answer in HTTP"),
    ],
)
def test_what_is_no_answer_is_said_in_words_of_ours(sent: bytes, said: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        writer.close()

    async def scene() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(AgentUnreachable) as failed:
                await HttpClient().ask(address, "/health", timeout=60)
        assert str(failed.value) == f"the agent at {address} cannot be asked: {said}"

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (Refusal("unknown-target", "there is no agent known at the target"), None),
        (Refusal("token", "it has no token"), "do not talk: it has no token"),
    ],
    ids=["a helper that does not know whom it is to reach", "no token"],
)
def test_a_refusal_is_said_in_its_words_where_it_is_about_the_two_and_until_nobody_is_there(
    tmp_path: Path, why: Refusal, said: str | None
) -> None:
    async def refuses(request: Request) -> Response:
        return Response(409, msgspec.json.encode(why))

    async def scene(served: Served) -> None:
        other = HttpServer(refuses)
        address = f"127.0.0.1:{await other.start('127.0.0.1', 0)}"
        try:
            assert await served.agent.reach(address, "/probe-for", "127.0.0.1:9") is None
        finally:
            await other.stop()
        problems = served.agent.state().problems
        assert problems == ((f"the agent at {address} and this one {said}",) if said is not None else ())
        assert await served.agent.reach(address) is None
        assert served.agent.state().problems == ()

    play(tmp_path, scene)


def test_two_agents_of_which_one_runs_in_a_copy_of_the_others_home_both_say_so_and_only_as_long_as_it_is_so(
    tmp_path: Path,
) -> None:
    """Neither knows where the other is: somebody who has heard both tells them."""

    async def served_in(home: Path) -> tuple[Agent, HttpServer]:
        agent = opened(AgentSettings(home=str(home), address="127.0.0.1:0", name="n3", period=0.05), HttpClient())
        server = HttpServer(Routes(agent).answer)
        agent.address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        return agent, server

    async def until(agent: Agent, says: bool) -> None:
        async with asyncio.timeout(120):
            while any("one of their homes is a copy" in problem for problem in agent.state().problems) is not says:
                await asyncio.sleep(0.01)

    async def scene(served: Served) -> None:
        first, first_server = await served_in(tmp_path / "n3")
        shutil.copytree(tmp_path / "n3", tmp_path / "copy")
        copied, copied_server = await served_in(tmp_path / "copy")
        assert first.identity == copied.identity
        assert await first.reach(served.agent.address, "/handshake") is not None
        assert await copied.reach(served.agent.address, "/handshake") is not None
        greeting = [asyncio.ensure_future(agent._greet()) for agent in (first, copied)]
        try:
            for agent in (first, copied):
                await until(agent, True)
            greeting[1].cancel()
            await copied_server.stop()
            await until(first, False)
        finally:
            for task in greeting:
                task.cancel()
            await first_server.stop()
            await copied_server.stop()
            for agent in (first, copied):
                agent.home.release()

    play(tmp_path / "n1", scene)


def test_an_agent_that_has_moved_is_not_taken_for_a_copy(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        for address in ("127.0.0.1:7", "127.0.0.1:8"):
            sender = changed(STRANGER, address=address)
            _, body = await served.post("/handshake", call(sender))
        told = [one for one in msgspec.json.decode(body, type=Answer).sightings if one.agent_id == STRANGER.agent_id]
        assert told[0].address == "127.0.0.1:7"
        _, body = await served.post("/handshake", call(sender))
        told = [one for one in msgspec.json.decode(body, type=Answer).sightings if one.agent_id == STRANGER.agent_id]
        assert {one.address for one in told} <= {"127.0.0.1:8"}
        # The agent itself calls there once, and finds nobody.
        served.agent.met_itself("127.0.0.1:9")
        greeting = asyncio.ensure_future(served.agent._greet())
        async with asyncio.timeout(120):
            while served.agent._elsewhere:
                await asyncio.sleep(0.01)
        greeting.cancel()
        assert served.agent.state().problems == ()

    play(tmp_path, scene)


def test_another_agent_that_says_it_is_on_the_same_node_is_named(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        await served.post("/handshake", call(changed(STRANGER, name="n1", address="127.0.0.1:8")))
        assert served.agent.state().problems == ("the agent at 127.0.0.1:8 says that it is on node n1 as well",)

    play(tmp_path, scene)


def test_who_wants_to_join_and_meets_two_clusters_asks_neither_and_says_so(tmp_path: Path) -> None:
    async def scene(served: Served) -> None:
        agent = served.agent
        agent.tag = None
        assert (agent._members(), agent._why_nobody()) == ((), NOBODY)
        for number, tag in enumerate((MINE, OTHER, MINE), start=1):
            who = changed(STRANGER, agent_id=str(number), name=f"m{number}", address=f"127.0.0.1:{number}", tag=tag)
            assert (await served.post("/handshake", call(who)))[0] == 200
        assert agent._members() == ()
        said = f"members of several clusters answer ({OTHER.id} at 127.0.0.1:2, {MINE.id} at 127.0.0.1:1)"
        assert agent._why_nobody().startswith(said)
        agent.membership.peers["2"].seen = Seen.UNREACHABLE
        assert agent._members() == ("127.0.0.1:1", "127.0.0.1:3")

    play(tmp_path, scene)


def test_an_init_asks_the_agent_of_a_name_that_answers_and_names_the_addresses_where_several_do(
    tmp_path: Path,
) -> None:
    async def scene(served: Served) -> None:
        agent = served.agent
        asked = Prepare(agent.introduction(), "n-1", "r", "/r")
        assert (await agent._prepare("n9", asked)) == Refusal("unknown", "no agent of this name is known here")

        async def ready(request: Request) -> Response:
            return Response(200, msgspec.json.encode(Ready("n-1")))

        other = HttpServer(ready)
        address = f"127.0.0.1:{await other.start('127.0.0.1', 0)}"
        try:
            agent.heard(Call(STRANGER, "n"))
            agent.heard(Call(changed(STRANGER, agent_id="anew", address=address), "n"))
            why = await agent._prepare("n9", asked)
            assert isinstance(why, Refusal)
            assert address in why.reason
            assert STRANGER.address in why.reason
            # The one of before, whose home was cleared.
            agent.membership.peers[STRANGER.agent_id].seen = Seen.UNREACHABLE
            assert await agent._prepare("n9", asked) == Ready("n-1")
        finally:
            await other.stop()

    play(tmp_path, scene)
