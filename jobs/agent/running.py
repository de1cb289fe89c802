"""Running an agent as a process: `python -m epochlake.jobs.agent`, which `epochlake agent run` becomes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

from epochlake.jobs.agent.agent import AgentSettings, opened
from epochlake.jobs.agent.coordination_server import asked_for
from epochlake.jobs.agent.http_client import HttpClient, split_address
from epochlake.jobs.agent.http_server import HttpServer
from epochlake.jobs.agent.join_messages import WantedVolume
from epochlake.jobs.agent.joining import WantedNode
from epochlake.jobs.agent.patience import LONGEST_PERIOD, SHORTEST_JOIN, SHORTEST_PERIOD, beyond
from epochlake.jobs.agent.routes import OPEN_TO_ALL, Routes
from epochlake.jobs.agent.volumes import local_path
from epochlake.metastore.texts import is_unicode
from epochlake.metastore.waiting import MOST_SECONDS
from epochlake.placement.errors import EpochlakeError, InvalidRequest

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
CRASHED = 70
"""The exit code of what nobody foresaw: worth starting again, which a wrong option is not."""
EVERYWHERE = ("0.0.0.0", "::", "")


def parser() -> argparse.ArgumentParser:
    """The options of `agent run`, as the process takes them."""
    made = argparse.ArgumentParser(prog="epochlake agent run")
    made.add_argument("--home", required=True)
    made.add_argument("--listen", default="127.0.0.1:7610")
    for option in ("--name", "--advertise", "--conf", "--root", "--token-file"):
        made.add_argument(option)
    for option in ("--tls-certificate", "--tls-key", "--tls-authority"):
        made.add_argument(option)
    made.add_argument("--seed", action="append", default=[])
    made.add_argument("--volume", action="append", default=[])
    made.add_argument("--join", metavar="DATACENTER/RACK")
    made.add_argument("--cluster")
    made.add_argument("--join-timeout", type=_seconds(SHORTEST_JOIN, MOST_SECONDS), default=600.0)
    made.add_argument("--admit", action="store_true")
    made.add_argument("--found", action="store_true")
    made.add_argument("--coordination-server", metavar="SERVER")
    made.add_argument("--period", type=_seconds(SHORTEST_PERIOD, LONGEST_PERIOD), default=1.0)
    return made


def _seconds(least: float, most: float) -> Callable[[str], float]:
    """Reads seconds from an option of the process, which somebody may start without the command line."""

    def read(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        why = beyond(seconds, least, most)
        if why is not None:
            raise argparse.ArgumentTypeError(why)
        return seconds

    return read


def token_of(file: str | None) -> str | None:
    """The token in a file. Raises InvalidRequest for one that is empty or cannot be read."""
    if file is None:
        return None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the token file {file} cannot be read: {error}", hint="Name a readable file") from error
    if len(token) < 16 or not token.isascii() or any(c.isspace() for c in token):
        raise InvalidRequest(
            f"the token file {file} holds no token", hint="Write 16 characters or more in one line, of ASCII"
        )
    return token


def tls_of(
    certificate: str | None, key: str | None, authority: str | None
) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Contexts to serve and to ask with: both sides show a certificate of the authority. Raises InvalidRequest."""
    given = (certificate, key, authority)
    if not any(given):
        return None, None
    if not all(given):
        raise InvalidRequest(
            "TLS needs a certificate, its key and the authority",
            hint="Give --tls-certificate, --tls-key and --tls-authority",
        )
    try:
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        asking = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
        for context in (serving, asking):
            context.load_cert_chain(str(certificate), key)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"the files for TLS cannot be used: {error}", hint="Name files in PEM") from error
    return serving, asking


def reachable(address: str) -> tuple[str, int]:
    """Host and port of an address that others can be called at. Raises InvalidRequest."""
    host, port = split_address(address)
    if port == 0:
        raise InvalidRequest(f"nobody can be called at {address}: it has no port", hint="Give HOST:PORT")
    return host, port


async def serve(given: argparse.Namespace) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    token = token_of(given.token_file)
    serving, asking = tls_of(given.tls_certificate, given.tls_key, given.tls_authority)
    host, port = split_address(given.listen)
    if host in EVERYWHERE and not given.advertise:
        raise InvalidRequest("others cannot call at every address", hint="Give --advertise HOST:PORT")
    if host not in LOOPBACK and (token is None or serving is None):
        logger.warning("agents at %s are asked without %s", given.listen, "a token" if token is None else "TLS")
    if given.advertise:
        advertised, _ = reachable(given.advertise)
        if advertised in EVERYWHERE:
            raise InvalidRequest(f"others cannot call at {given.advertise}", hint="Give --advertise HOST:PORT")
    for address in given.seed:
        reachable(address)
    volumes = tuple(_volume(text) for text in given.volume)
    names = [volume.name for volume in volumes]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"volume {name!r} is given twice", hint="Give each --volume a name of its own")
    settings = AgentSettings(
        home=given.home,
        address=given.advertise or given.listen,
        name=given.name,
        seeds=tuple(given.seed),
        conf=given.conf,
        root=given.root,
        volumes=tuple((volume.name, volume.uri) for volume in volumes),
        period=given.period,
        may_found=given.found,
        join=None if given.join is None else _wanted(given.join, volumes, given.cluster),
        join_seconds=given.join_timeout,
        admits=given.admit,
        asking=_asking(given),
        coordination_server=None if given.coordination_server is None else asked_for(given.coordination_server),
    )
    if port == 0 and not given.advertise and given.found:
        raise InvalidRequest("an agent that founds needs an address that stays", hint="Give --listen a port")
    agent = opened(settings, HttpClient(token=token, tls=asking))
    routes = Routes(agent)
    server = routes.server = HttpServer(routes.answer, token=token, open_to_all=OPEN_TO_ALL, tls=serving)
    try:
        bound = await server.start(host, port)
    except OSError as error:
        raise InvalidRequest(
            f"{given.listen} cannot be listened on: {error.strerror}", hint="Give another --listen"
        ) from error
    if not given.advertise and port == 0:
        agent.address = f"{given.listen.rpartition(':')[0]}:{bound}"
    print(f"agent {agent.identity.name} listens on {agent.address}", flush=True)
    running = asyncio.ensure_future(agent.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        logger.info("the agent ends")
    finally:
        await server.stop()
        agent.home.release()


def _asking(given: argparse.Namespace) -> tuple[str, ...]:
    """The options by which a process of this agent asks others."""
    options = ("token_file", "tls_certificate", "tls_key", "tls_authority")
    found = [(f"--{option.replace('_', '-')}", getattr(given, option)) for option in options]
    return tuple(word for option, value in found if value is not None for word in (option, value))


def _volume(text: str) -> WantedVolume:
    """A volume as `NAME=URI[,BYTES]`; a relative path counts from here, and is told as an absolute one."""
    name, equals, uri = text.partition("=")
    place, comma, size = uri.rpartition(",")
    capacity = int(size) if comma and size.isascii() and size.isdigit() else None
    uri = place if capacity is not None else uri
    if not equals or not name or not uri or capacity == 0:
        raise InvalidRequest(f"{text!r} is no volume", hint="Give NAME=URI, or NAME=URI,BYTES")
    wanted = WantedVolume(name, os.path.abspath(uri) if local_path(uri) == uri else uri, capacity)
    require_unicode("--volume", f"{name}={wanted.uri}")
    return wanted


def require_unicode(option: str, text: str) -> None:
    """Raise InvalidRequest for what cannot be told to others: bytes that are no UTF-8 come as half characters."""
    if not is_unicode(text):
        raise InvalidRequest(f"{option} {text!a} is no text in UTF-8", hint="Give names and paths in UTF-8")


def _wanted(place: str, volumes: tuple[WantedVolume, ...], cluster: str | None) -> WantedNode:
    for option, text in (("--join", place), ("--cluster", cluster or "")):
        require_unicode(option, text)
    datacenter, slash, rack = place.partition("/")
    if not slash or not datacenter or not rack:
        raise InvalidRequest(f"{place!r} is no place of a node", hint="Give --join DATACENTER/RACK")
    if not volumes:
        raise InvalidRequest("a node that joins needs a volume", hint="Give --volume NAME=URI")
    return WantedNode(datacenter, rack, volumes, cluster)


def main(arguments: list[str] | None = None) -> int:
    """Run an agent until it is told to end; the exit code."""
    given = parser().parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    try:
        asyncio.run(serve(given))
    except EpochlakeError as error:
        print(f"epochlake: {error.statement}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except Exception:
        logger.exception("the agent failed")
        return CRASHED
    return 0
