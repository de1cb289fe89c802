"""How agents are started: tokens, TLS, and options that cannot be meant."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from epochlake.jobs.agent.agent import AgentSettings, opened
from epochlake.jobs.agent.http_client import AgentDistrusted, AgentUnreachable, HttpClient, split_address
from epochlake.jobs.agent.http_server import HttpServer, Request, Response
from epochlake.jobs.agent.join_messages import WantedVolume
from epochlake.jobs.agent.joining import WantedNode
from epochlake.jobs.agent.running import main, tls_of, token_of
from epochlake.jobs.cli.main import main as command
from epochlake.placement.errors import InvalidRequest


def certificate(directory: Path, name: str) -> tuple[str, str, str]:
    """A certificate of an authority of its own, for 127.0.0.1: certificate, key, authority."""
    made, key = directory / f"{name}.pem", directory / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    made_by = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*made_by, "-keyout", str(key), "-out", str(made), "-days", "2", *subject], check=True, capture_output=True
    )
    return str(made), str(key), str(made)


def test_whom_to_ask_is_named_before_anything_is_streamed_by_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["coordinator", "run", "--until-idle"], ["repair", "air.flights"]):
        assert command([*words, "--streaming", "agents"]) == 2
        assert "no agent is named" in capsys.readouterr().err
        assert command([*words, "--streaming", "agents", "--agent", "nowhere"]) == 2
        assert "no address of an agent" in capsys.readouterr().err


@pytest.mark.parametrize("period", ["0", "0.04", "60.5", "nan", "-1", "inf"])
def test_a_period_that_cannot_be_meant_is_refused_before_an_agent_begins(
    tmp_path: Path, period: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["agent", "run", "--home", str(tmp_path / "home"), "--name", "n1", f"--period={period}"]
    assert command(words) == 2
    assert "is not in the range 0.05<=x<=60" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--join-timeout", "inf", "give seconds from 1 to 1,000,000,000"),
        ("--join-timeout", "nan", "give seconds from 1 to 1,000,000,000"),
        ("--join-timeout", "0", "give seconds from 1 to 1,000,000,000"),
        ("--join-timeout", "-1", "give seconds from 1 to 1,000,000,000"),
        ("--period", "inf", "give seconds from 0.05 to 60"),
    ],
)
def test_seconds_that_cannot_be_waited_for_are_refused_by_the_command_and_by_the_process(
    tmp_path: Path, option: str, given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--home", str(tmp_path / "home"), "--name", "n1", f"{option}={given}"]
    assert command(["agent", "run", *words]) == 2
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "words",
    [["--volume", "d1=/\udcff"], ["--volume", "d1=/d1", "--join", "dc\udcff/r1"]],
)
def test_what_others_cannot_be_told_is_refused_before_an_agent_begins(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--home", str(tmp_path / "home"), "--name", "n1", "--listen", "127.0.0.1:0", *words]) == 2
    assert "is no text in UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("given", ["inf", "nan", "-1"])
def test_an_init_does_not_wait_for_ever(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["agent", "init", "127.0.0.1:1", "--metadata-nodes", "n1", f"--timeout={given}"]) == 2
    assert "give seconds from 0 to 1,000,000,000" in capsys.readouterr().err


async def pong(request: Request) -> Response:
    return Response(200, b"pong")


def test_with_tls_both_sides_show_a_certificate_of_the_authority(tmp_path: Path) -> None:
    mine, other = certificate(tmp_path, "mine"), certificate(tmp_path, "other")
    serving, asking = tls_of(*mine)
    _, stranger = tls_of(other[0], other[1], mine[2])

    async def scene() -> None:
        server = HttpServer(pong, tls=serving)
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        try:
            assert await HttpClient(tls=asking).ask(address, "/", timeout=20) == (200, b"pong")
            for client in (HttpClient(tls=stranger), HttpClient()):
                with pytest.raises(AgentUnreachable):
                    await client.ask(address, "/", timeout=20)
            assert await HttpClient(tls=asking).ask(address, "/", timeout=20) == (200, b"pong")
        finally:
            await server.stop()

    asyncio.run(scene())


def test_an_agent_says_that_the_certificate_of_another_is_not_believed_and_who_asks_is_told(tmp_path: Path) -> None:
    mine, other = certificate(tmp_path, "mine"), certificate(tmp_path, "other")
    serving, _ = tls_of(*mine)
    _, stranger = tls_of(*other)

    async def scene() -> None:
        server = HttpServer(pong, tls=serving)
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        wanted = WantedNode("dc1", "r1", (WantedVolume("d1", str(tmp_path / "d1")),))
        settings = AgentSettings(str(tmp_path / "home"), "127.0.0.1:1", "n2", join=wanted)
        agent = opened(settings, HttpClient(tls=stranger))
        try:
            assert await agent.reach(address, "/handshake") is None
            said = f"the agent at {address} and this one do not talk: its certificate is not believed: self"
            assert said in "".join(agent.state().problems)
            assert agent.joining is not None
            assert said in agent.joining._nobody()
            with pytest.raises(AgentDistrusted) as told:
                await HttpClient(tls=stranger).ask(address, "/", timeout=60)
            assert "certificates of one authority" in told.value.hint
        finally:
            await server.stop()
            agent.home.release()
        assert await agent.reach(address, "/handshake") is None
        assert not agent.refusals, "nobody is there now"

    asyncio.run(scene())


def test_a_handshake_that_fails_is_counted_and_logged_and_is_in_nobodys_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without TLS, with the certificate of a stranger, without a word; who only looks whether there is somebody."""
    mine, other = certificate(tmp_path, "mine"), certificate(tmp_path, "other")
    serving, asking = tls_of(*mine)
    _, stranger = tls_of(other[0], other[1], mine[2])

    async def counted(server: HttpServer, count: int, kind: str = "tls") -> None:
        async with asyncio.timeout(120):
            while server.refused[kind] < count:
                await asyncio.sleep(0.01)

    async def strangers() -> None:
        server = HttpServer(pong, tls=serving)
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        try:
            for count, client in enumerate((HttpClient(tls=stranger), HttpClient()), start=1):
                with pytest.raises(AgentUnreachable):
                    await client.ask(address, "/", timeout=60)
                await counted(server, count)
        finally:
            await server.stop()
        with pytest.raises(AgentUnreachable):
            await HttpClient(tls=asking).ask(address, "/", timeout=60)

    async def silent() -> None:
        server = HttpServer(pong, tls=serving, seconds=0.5)
        port = await server.start("127.0.0.1", 0)
        try:
            opened = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(5)]
            await counted(server, 5)
            for writer in opened:
                writer.close()
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            await counted(server, 1, "gone")
            assert server.refused["tls"] == 5
        finally:
            await server.stop()

    for scene in (strangers, silent):
        asyncio.run(scene())
    said = [record.getMessage() for record in caplog.records if "its TLS handshake failed" in record.getMessage()]
    assert "http request" in said[1]
    more = [int(found[1]) for line in said if (found := re.search(r" (\d+) more within 60 s", line))]
    assert len(said) - len(more) + sum(more) == 7
    assert len(said) < 7, "those of one kind are one line, and their number"


def test_a_token_is_one_word_of_sixteen_characters_or_more(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    assert token_of(str(file)) == "0123456789abcdef"
    assert token_of(None) is None
    for bad in ("", "short", "0123456789 abcdef", "0123456789abcdéf"):
        file.write_text(bad)
        with pytest.raises(InvalidRequest, match="holds no token"):
            token_of(str(file))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        ":1",
        "host:",
        "host:x",
        "host:99999",
        "host:-1",
        "host:٣",
        "http://host:1",
        "a b:1",
        "a\r\nb:1",
        "ä:1",
        "u@h:1",
    ],
)
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(InvalidRequest, match="no address"):
        split_address(address)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--listen", "0.0.0.0:0"], 2, "--advertise"),
        (["--listen", "127.0.0.1:0", "--found"], 2, "address that stays"),
        (["--tls-key", "x"], 2, "--tls-authority"),
        (["--seed", "nowhere"], 2, "no address"),
        (["--seed", "127.0.0.1:0"], 2, "has no port"),
        (["--advertise", "0.0.0.0:7610"], 2, "others cannot call at"),
        (["--advertise", "[::]:7610"], 2, "others cannot call at"),
        (["--advertise", "h1:0"], 2, "has no port"),
        (["--name", "../n1"], 2, "no name of a node"),
        (["--name", "n\n1"], 2, "no name of a node"),
        (["--name", "n" * 256], 2, "no name of a node"),
        (["--volume", "d1"], 2, "NAME=URI"),
        (["--volume", "d1=/a", "--volume", "d1=/b"], 2, "given twice"),
        (["--token-file", "/nowhere"], 2, "cannot be read"),
    ],
)
def test_options_that_cannot_be_meant_end_it_with_a_line_and_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert main(["--home", str(tmp_path / "home"), "--name", "n1", *words]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("epochlake: ")


def test_the_resident_process_loads_neither_arrow_nor_delta_nor_spark() -> None:
    heavy = ("numpy", "pyarrow", "deltalake", "kazoo", "pyspark", "typer", "rich", "epochlake.metastore.metastore")
    program = f"import sys, epochlake.jobs.agent.running; print([m for m in {heavy!r} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
