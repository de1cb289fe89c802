"""The servers of a ZooKeeper ensemble as ZooKeeper writes them, and the steps from one set of them to another. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec
from epochlake.placement.errors import InvalidRequest

VOTER = "participant"
OBSERVER = "observer"

_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:;|\[\]=,@]+)"
_PORT = r"\d{1,9}"
_ADDRESS = rf"{_HOST}:{_PORT}:{_PORT}"
_SERVER = re.compile(
    rf"(?:server\.)?(?P<number>\d{{1,18}})\s*=\s*(?P<address>{_ADDRESS}(?:\|{_ADDRESS})*)(?::(?P<role>{VOTER}|{OBSERVER}))?"
    rf"(?:;(?P<client>(?:{_HOST}:)?{_PORT})?)?(?:;(?P<secure>(?:{_HOST}:)?{_PORT}))?"
)
_LARGEST_NUMBER = 255
"""One byte of a session's id is the number of the server that began it: with larger ones two sessions share an id."""
_LARGEST_PORT = 65535
_ANY_ADDRESS = ("0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]")


class Server(msgspec.Struct, frozen=True, order=True):
    """A server of an ensemble. `address` is where the others reach it (host:port:port), `client` where clients do
    (host:port), empty where the ensemble does not know it; `secure` the same for TLS.
    """

    number: int
    address: str
    client: str
    role: str = VOTER
    secure: str = ""

    def __str__(self) -> str:
        """As ZooKeeper writes it into its configuration."""
        ends = (f";{self.client}" if self.client or self.secure else "") + (f";{self.secure}" if self.secure else "")
        return f"server.{self.number}={self.address}:{self.role}{ends}"

    @property
    def votes(self) -> bool:
        return self.role == VOTER

    @property
    def reached_at(self) -> str:
        """host:port for clients, with the host of the server where it listens at every address; empty: not known."""
        host, _, port = self.client.rpartition(":")
        if host in _ANY_ADDRESS:
            host = self.address.split("|")[0].rsplit(":", 2)[0]
        return f"{host}:{port}" if port else ""

    def as_role(self, role: str) -> Server:
        return msgspec.structs.replace(self, role=role)


class EnsembleConfiguration(msgspec.Struct, frozen=True):
    """What an ensemble says of itself: its servers, by number, and the version of that."""

    version: int
    servers: tuple[Server, ...]

    @property
    def voters(self) -> tuple[Server, ...]:
        return tuple(server for server in self.servers if server.votes)

    @property
    def connect(self) -> str:
        """Where its clients reach it, as a connect string; empty where it does not say so."""
        return ",".join(server.reached_at for server in self.servers if server.reached_at)

    def find(self, number: int) -> Server | None:
        return next((server for server in self.servers if server.number == number), None)


class Step(msgspec.Struct, frozen=True):
    """One reconfiguration of an ensemble: one server joins or gets another role (`joining`), or one leaves (`leaving`,
    its number).
    """

    joining: Server | None = None
    leaving: int | None = None

    def __str__(self) -> str:
        if self.joining is None:
            return f"server {self.leaving} leaves"
        return f"server {self.joining.number} becomes {'a voter' if self.joining.votes else 'an observer'}"


def parse_server(text: str) -> Server:
    """A server as ZooKeeper writes it (`server.4=zk4:2888:3888;2181`, the first word may be left out). Raises
    InvalidRequest.
    """
    found = _SERVER.fullmatch(text.strip()) if text.isascii() else None
    if found is None:
        raise InvalidRequest(
            f"{text!r} is no server of a ZooKeeper ensemble",
            hint="Write it as ZooKeeper does, in quotes: '4=zk4:2888:3888;2181', or '…:observer;2181'",
        )
    return Server(
        number=int(found["number"]),
        address=found["address"],
        client=_everywhere(found["client"]),
        role=found["role"] or VOTER,
        secure=_everywhere(found["secure"]),
    )


def _everywhere(client: str | None) -> str:
    """An address for clients as ZooKeeper shows it: a port alone is one at every address of the machine."""
    if not client:
        return ""
    return client if ":" in client else f"0.0.0.0:{client}"


def parse_configuration(text: str) -> EnsembleConfiguration:
    """What the znode of the configuration holds. A single server that is not part of an ensemble has none: version 0.
    Lines that are neither a server nor the version (weights, groups) are InvalidRequest, since steps would lose them.
    """
    version = 0
    servers = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("version="):
            version = int(line.partition("=")[2], 16)
        else:
            servers.append(parse_server(line))
    return EnsembleConfiguration(version, tuple(sorted(servers, key=lambda server: server.number)))


def require_possible(servers: Collection[Server], before: Collection[Server] = (), dead: Collection[int] = ()) -> None:
    """Raise InvalidRequest for servers that cannot be an ensemble as it is to be kept.

    An even number of them may vote where that is all that is left: of `before` nobody has lost a vote but `dead` ones,
    by their numbers, and nobody has got one. They outlive as many losses as they did, and the dead one, whose data may
    be gone, can begin anew.
    """
    require_apart(servers)
    for server in servers:
        require_startable(server)
    voters = sum(server.votes for server in servers)
    if voters % 2 == 0 and not _are_what_is_left(servers, before, dead):
        raise InvalidRequest(
            f"{voters} of the servers would vote, and an odd number is to",
            hint="Make another one an observer ('4:observer'), or name one more: an even voter is one more to wait for",
        )


def _are_what_is_left(servers: Collection[Server], before: Collection[Server], dead: Collection[int]) -> bool:
    now, then = ({one.number for one in some if one.votes} for some in (before, servers))
    return bool(then) and then < now and now - then <= set(dead)


def require_apart(servers: Collection[Server]) -> None:
    """Raise InvalidRequest where two servers have one number or one address."""
    numbers = sorted(server.number for server in servers)
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise InvalidRequest(f"server {twice[0]} is named twice", hint="Each server has a number of its own")
    where = [place for server in servers for place in (server.address, server.reached_at) if place]
    if again := sorted({place for place in where if where.count(place) > 1}):
        raise InvalidRequest(f"{again[0]} is the address of two servers", hint="Each server has addresses of its own")


def require_startable(server: Server) -> None:
    """Raise InvalidRequest for a server that ZooKeeper would not start, or that nobody could use."""
    if server.number > _LARGEST_NUMBER:
        raise InvalidRequest(
            f"{server.number} is no number of a ZooKeeper server", hint=f"Give one from 1 to {_LARGEST_NUMBER}"
        )
    if not server.client and not server.secure:
        raise InvalidRequest(
            "a server has no address for clients", hint="Name its port after a semicolon: '4=zk4:2888:3888;2181'"
        )
    for address in server.address.split("|"):
        *_, peer, vote = address.rsplit(":", 2)
        ports = [int(peer), int(vote), *(int(one.rpartition(":")[2]) for one in (server.client, server.secure) if one)]
        if wrong := [port for port in ports if not 0 < port <= _LARGEST_PORT]:
            raise InvalidRequest(f"{wrong[0]} is no port", hint=f"Give one from 1 to {_LARGEST_PORT}")
        if len(set(ports)) < len(ports):
            raise InvalidRequest(
                f"server {server.number} has one port for two purposes",
                hint="It needs one for its leader, one for elections and one for clients: '4=zk4:2888:3888;2181'",
            )


def require_preparable(server: Server) -> None:
    """Raise InvalidRequest for a server that is not to come into any ensemble; one that is in one may stay."""
    require_startable(server)
    if server.number < 1:
        raise InvalidRequest(
            f"{server.number} is no number of a ZooKeeper server", hint=f"Give one from 1 to {_LARGEST_NUMBER}"
        )
    for address in server.address.split("|"):
        if address.rsplit(":", 2)[0] in _ANY_ADDRESS:
            raise InvalidRequest(
                f"{address} is no address at which other servers could reach server {server.number}",
                hint="Name its host; after the semicolon, for clients, a port alone is one at every address",
            )


def require_same_place(members: Collection[Server], server: Server) -> None:
    """Raise InvalidRequest for a number that is another server's, elsewhere."""
    found = next((one for one in members if one.number == server.number), None)
    if found is not None and found.as_role(server.role) != server:
        raise InvalidRequest(
            f"server {server.number} is at {found.address} already",
            hint="Give a server elsewhere another number, and its own data",
        )


def require_change(now: EnsembleConfiguration, target: Collection[Server], dead: Collection[int] = ()) -> None:
    """Raise InvalidRequest where an ensemble cannot become these servers. `dead`: those that do not answer."""
    require_possible(target, now.servers, dead)
    for server in target:
        require_same_place(now.servers, server)


def next_step(servers: Collection[Server], target: Collection[Server]) -> Step | None:
    """The next of the steps that lead from `servers` to `target`, one server each; None at the end.

    Who joins comes before who leaves, so that at no time fewer losses can be outlived than at one of the two ends. It
    depends on nothing but these two, so whoever goes on after anybody does the same.
    """
    now = {server.number: server for server in servers}
    then = {server.number: server for server in target}
    for number, server in sorted(then.items(), key=lambda item: (not item[1].votes, item[0])):
        is_promoted = number in now and server.votes and not now[number].votes
        if is_promoted and sum(one.votes for one in servers) == 1:
            # ZooKeeper counts who follows it and not who observes it when a second voter comes. Who has left follows.
            return Step(leaving=number)
        if number not in now or is_promoted:
            return Step(joining=server)
    for number in _last_ones_first(now.keys() - then.keys(), now):
        return Step(leaving=number)
    for number, server in sorted(then.items()):
        if now[number].role != server.role:
            return Step(joining=server)
    return None


def _last_ones_first(leaving: Iterable[int], now: Mapping[int, Server]) -> list[int]:
    """Observers leave first: no majority depends on them."""
    return sorted(leaving, key=lambda number: (now[number].votes, number))
