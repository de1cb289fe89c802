"""The agent: what it knows, what it does again and again, and what it answers. Everything here runs in one event loop.

Nothing that may hang is waited for in the loop: volumes and the root are looked at in threads that are left alone, the
log is followed by a process that is killed when it is late, and documents of the home are written in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from epochlake.jobs.agent.admitting import Admitting, by_process
from epochlake.jobs.agent.coordination_server import CoordinationServer
from epochlake.jobs.agent.discovering import Discovering, begin
from epochlake.jobs.agent.documents import AgentState, LogSeen, NodeSeen, nodes_seen, problems_of
from epochlake.jobs.agent.file_serving import FileServing
from epochlake.jobs.agent.home import PEERS, TAG, VIEW, Home, HomeUnwritable, View
from epochlake.jobs.agent.http_client import AgentDistrusted, AgentUnreachable, HttpClient
from epochlake.jobs.agent.initialising import Began, Idle, Initialising, InitOrder, Prepare, Ready
from epochlake.jobs.agent.joining import NOBODY, Joining, Phase, WantedNode
from epochlake.jobs.agent.log_follower import LogFollower
from epochlake.jobs.agent.membership import MOST_PEERS, Membership, Peer
from epochlake.jobs.agent.messages import (
    MOST_SIGHTINGS,
    PROTOCOL,
    Answer,
    Call,
    Introduction,
    Refusal,
    Seen,
    Sighting,
    Tag,
    refusal,
)
from epochlake.jobs.agent.processes import configured
from epochlake.jobs.agent.sanity import untrue_answer
from epochlake.jobs.agent.task_orders import TaskOrders
from epochlake.jobs.agent.tasking import Tasking
from epochlake.jobs.agent.upgrading import Upgrading
from epochlake.jobs.agent.volumes import VolumeSeen, VolumeWatch
from epochlake.metastore.coordination.ensemble import Server
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.version import PRODUCT_VERSION

logger = logging.getLogger(__name__)

VOLUME_SECONDS = 10.0
VOLUME_DEADLINE_SECONDS = 5.0


class AgentSettings(msgspec.Struct, frozen=True):
    """How an agent is run. `address` is what it tells others; `volumes` are watched before the log names any. `asking`:
    the options by which a process of its own asks other agents. `coordination_server`: the ZooKeeper server that it is
    to run.
    """

    home: str
    address: str
    name: str | None = None
    seeds: tuple[str, ...] = ()
    conf: str | None = None
    root: str | None = None
    volumes: tuple[tuple[str, str], ...] = ()
    period: float = 1.0
    timeout: float = 2.0
    may_found: bool = False
    join: WantedNode | None = None
    join_seconds: float = 600.0
    admits: bool = False
    asking: tuple[str, ...] = ()
    coordination_server: Server | None = None


class Agent:
    """One agent in its home, which it has locked."""

    def __init__(self, home: Home, settings: AgentSettings, client: HttpClient) -> None:
        self.home = home
        self.settings = settings
        self.identity = home.identity(settings.name)
        self.tag = home.read(TAG, Tag)
        self.view = home.read(VIEW, View)
        self.address = settings.address
        self.membership = Membership(self.identity.agent_id, random.Random(), settings.period)
        self.refusals: dict[str, str] = {}
        self._elsewhere: set[str] = set()
        """Where somebody is who may have this agent's id."""
        self._moved: dict[str, str] = {}
        """Where agents were that speak from another address now, until they are told of it."""
        self._client = client
        self._known = set(settings.seeds) | set(home.read(PEERS, tuple[str, ...]) or ())
        self._written: set[str] = set()
        self._home_problem = ""
        self._volumes: dict[str, VolumeWatch] = {}
        self._watch_volumes()
        self.discovering = Discovering(
            home,
            self.identity,
            client,
            address=settings.address,
            seeds=settings.seeds,
            conf=settings.conf,
            root=settings.root,
            may_found=settings.may_found,
            period=settings.period,
        )
        if self.tag is not None:
            # A member never answers as if it searched, also before it has looked at its root.
            self.discovering.discovery.found(self.tag)
        self.admitting = Admitting(by_process(settings.conf, settings.root))
        self.upgrading = Upgrading(settings.conf, settings.root)
        self.serving = FileServing()
        self.tasking = Tasking([*configured(settings.conf, settings.root), *settings.asking])
        self.orders = TaskOrders(self.tasking, self.identity.name, lambda: (self.tag, self.view), self._addresses_of)
        self.initialising = Initialising(
            home, introduction=self.introduction, idle=self._idle, ask=self._prepare, found=self._begin
        )
        self.joining = None if settings.join is None else self._joining(settings.join)
        wanted = settings.coordination_server
        self.coordinating = None if wanted is None else CoordinationServer(home, wanted, settings.conf, settings.root)
        self.follower = LogFollower(home, self.identity.name, settings.conf, settings.root) if settings.root else None

    def _joining(self, wanted: WantedNode) -> Joining:
        return Joining(
            self.home,
            self.identity,
            wanted,
            self._client,
            introduction=self.introduction,
            members=self._members,
            nobody=self._why_nobody,
            seconds=self.settings.join_seconds,
            period=self.settings.period,
        )

    def _members(self) -> tuple[str, ...]:
        """Where members of the cluster are that this agent may join; none when two clusters answer."""
        clusters = self._clusters()
        return tuple(sorted(*clusters.values())) if len(clusters) == 1 else ()

    def _clusters(self) -> dict[str, list[str]]:
        """Where members of each cluster are that answer, by the id of their cluster."""
        found: dict[str, list[str]] = {}
        for peer in self.membership.peers.values():
            if peer.seen is Seen.ALIVE and peer.tag_id:
                found.setdefault(peer.tag_id, []).append(peer.address)
        return found

    def _why_nobody(self) -> str:
        """Why a node that wants to join asks nobody."""
        clusters = self._clusters()
        if len(clusters) < 2:
            why = [f"the agent at {address} and this one do not talk: {why}" for address, why in self.refusals.items()]
            return "; ".join([NOBODY, *sorted(why)[:1]])
        said = ", ".join(f"{id_} at {min(addresses)}" for id_, addresses in sorted(clusters.items()))
        return f"members of several clusters answer ({said}): give only seeds of the one that is meant"

    def _idle(self) -> Idle:
        told = self.follower.told if self.follower is not None else None
        at_root = None if told is None or told.tag is None else msgspec.convert(told.tag, decodable(Tag))
        tag = self.tag or self.discovering.discovery.state.tag or at_root
        return Idle(tag, self.settings.root, "no root" if told is None else told.outcome)

    async def _prepare(self, name: str, asked: Prepare) -> Refusal | Ready:
        """Send the preparation of an init to the agent of a node."""
        named = [peer for peer in self.membership.peers.values() if peer.name == name]
        # One whose home was cleared, or that has moved under another id, is remembered for a while: it is nobody.
        peers = [peer for peer in named if peer.seen is not Seen.UNREACHABLE] or named[:1]
        if len(peers) != 1:
            several = f"agents at {', '.join(sorted(peer.address for peer in peers))} have this name"
            return Refusal("unknown", several if peers else "no agent of this name is known here")
        [peer] = peers
        try:
            body = msgspec.json.encode(asked)
            status, answer = await self._client.ask(peer.address, "/prepare-init", body, timeout=10.0)
            return (
                msgspec.json.decode(answer, type=decodable(Ready))
                if status == 200
                else msgspec.json.decode(answer, type=decodable(Refusal))
            )
        except (AgentUnreachable, InvalidRequest) as error:
            return Refusal("unreachable", error.reason)
        except msgspec.MsgspecError:
            return Refusal("malformed", "its answer cannot be understood")

    async def _begin(self, order: InitOrder) -> Began:
        """Begin the log as a user has asked for."""
        words = configured(self.settings.conf, self.settings.root)
        words += ["--request-id", order.request_id, "--reason", f"metadata nodes {', '.join(order.nodes)}", "--alone"]
        began = await begin([*words, *(["--name", order.name] if order.name else [])])
        if began.tag is not None:
            await self.discovering.found(began.tag)
        return began

    def introduction(self) -> Introduction:
        epoch = 0 if self.view is None else self.view.epoch
        return Introduction(
            agent_id=self.identity.agent_id,
            name=self.identity.name,
            address=self.address,
            tag=self.tag,
            protocol=PROTOCOL,
            product_version=PRODUCT_VERSION,
            counter=self.membership.counter,
            epoch=epoch,
            features=SUPPORTED,
            coordination_server="" if self.coordinating is None else str(self.coordinating.server),
        )

    async def run(self) -> None:
        """Do what an agent does until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._probe, self._greet, self._look_at_volumes, self._remember_peers, self._read_view):
                tasks.create_task(self._again(work))
            tasks.create_task(self._again(self.discovering.run))
            tasks.create_task(self._again(self.tasking.run))
            if self.coordinating is not None:
                tasks.create_task(self._again(self.coordinating.run))
            if self.joining is not None:
                tasks.create_task(self._again(self.joining.run))
            if self.follower is not None:
                tasks.create_task(self._again(self.follower.run))

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do a work to its end. One that fails in a way that nobody foresaw is begun again, and ends no other one."""
        while True:
            try:
                await work()
                return
            except Exception:
                logger.exception("a part of the agent failed, and is begun again")
                await asyncio.sleep(5 * self.settings.period)

    def heard(self, call: Call) -> None:
        """Take what a call tells, once it may talk."""
        self._take(call.sender, call.sightings)

    def _take(self, sender: Introduction, sightings: tuple[Sighting, ...]) -> None:
        now = time.monotonic()
        before = self.membership.heard(sender, now)
        if before is not None and len(self._moved) < MOST_SIGHTINGS:
            self._moved[sender.agent_id] = before
        for one in sightings[:MOST_SIGHTINGS]:
            if one.agent_id == self.identity.agent_id:
                self.met_itself(one.address)
        self.membership.merge(sightings, now)

    def answer(self, call: Call, *, reached: bool | None = None, known: tuple[str, ...] = ()) -> Answer:
        sightings = self.membership.sightings()
        before = self._moved.pop(call.sender.agent_id, None)
        if before is not None:
            # Only the caller can tell whether it has moved, or whether its home is a copy and the other one lives.
            who = call.sender
            itself = Sighting(who.agent_id, who.name, before, Seen.ALIVE, who.counter, who.epoch)
            sightings = (itself, *sightings[: MOST_SIGHTINGS - 1])
        return Answer(self.introduction(), call.nonce, sightings, reached, known)

    def addresses(self) -> tuple[str, ...]:
        """Where agents are that are known here, this one included."""
        return tuple(sorted({self.address, *(peer.address for peer in self.membership.peers.values())}))

    def _addresses_of(self, node: str) -> list[str]:
        """Where agents of a node are that belong to this cluster and answer."""
        mine = None if self.tag is None else self.tag.id
        peers = self.membership.peers.values()
        return [p.address for p in peers if p.name == node and p.seen is Seen.ALIVE and p.tag_id in ("", mine)]

    async def reach(self, address: str, path: str = "/probe", target: str | None = None) -> Answer | None:
        """Call another agent; None when it does not answer as a member of this cluster does."""
        mine = self.introduction()
        call = Call(mine, secrets.token_hex(8), self.membership.sightings(), target)
        # Who asks others to try waits for their try as well.
        patience = self.settings.timeout * (2 if target is not None else 1)
        try:
            status, body = await self._client.ask(address, path, msgspec.json.encode(call), timeout=patience)
            if status != 200:
                self._refused(address, body)
                return None
            answer = msgspec.json.decode(body, type=decodable(Answer))
        except AgentDistrusted as error:
            self._note_refusal(address, error.why)
            return None
        except (AgentUnreachable, InvalidRequest) as error:
            logger.debug("%s", error)
            # Nobody is there now: what somebody said there before is not how it stands.
            self.refusals.pop(address, None)
            return None
        except msgspec.MsgspecError:
            self._note_refusal(address, "its answer cannot be understood")
            return None
        untrue = untrue_answer(answer)
        if untrue is not None:
            self._note_refusal(address, f"its answer cannot be true: {untrue}")
            return None
        if answer.nonce != call.nonce:
            self._note_refusal(address, "it repeats an answer to another call")
            return None
        why = refusal(self.introduction(), answer.sender)
        if why is not None:
            self._note_refusal(address, why.reason)
            return None
        self.refusals.pop(address, None)
        self._take(answer.sender, answer.sightings)
        return answer

    def _refused(self, address: str, body: bytes) -> None:
        """Take it that another agent has refused a call."""
        try:
            why = msgspec.json.decode(body, type=decodable(Refusal))
        except msgspec.MsgspecError:
            why = Refusal("", body.decode("utf-8", "replace"))
        # A helper that does not know whom it is to reach says nothing of itself and of this one.
        if why.code != "unknown-target":
            self._note_refusal(address, why.reason[:300])

    def met_itself(self, address: str) -> None:
        """Somebody at another address may have this agent's id: it is called there, to see whether that is so."""
        if address != self.address and len(self._elsewhere) < MOST_SIGHTINGS:
            self._elsewhere.add(address)

    def state(self) -> AgentState:
        volumes, log = self.volumes_seen(), self.log_seen()
        others = tuple(
            f"the agent at {address} and this one do not talk: {why}" for address, why in self.refusals.items()
        )
        others += tuple(
            f"the agent at {peer.address} says that it is on node {peer.name} as well"
            for peer in self.membership.peers.values()
            if peer.name == self.identity.name and peer.seen is Seen.ALIVE
        )
        others += (self._home_problem,) if self._home_problem else ()
        if self.follower is not None and self.follower.told.damaged:
            others += (self.follower.told.damaged,)
        others += (self.discovering.problem,) if self.discovering.problem else ()
        discovery = self.discovering.discovery
        if discovery.two_clusters is not None:
            others += (str(discovery.two_clusters),)
        if self.joining is not None and self.joining.state.phase not in (Phase.ASKING, Phase.ACCEPTED):
            others += (f"its node has not joined ({self.joining.state.phase}): {self.joining.state.reason}",)
        server = None if self.coordinating is None else self.coordinating.seen()
        others += (server.problem,) if server is not None and server.problem else ()
        return AgentState(
            agent_id=self.identity.agent_id,
            name=self.identity.name,
            address=self.address,
            tag=self.tag,
            protocol=PROTOCOL,
            product_version=PRODUCT_VERSION,
            discovered=discovery.state.tag,
            waits=discovery.waits_for() if self.tag is None and self.settings.may_found else "",
            join=None if self.joining is None else self.joining.state,
            log=log,
            volumes=volumes,
            problems=problems_of(volumes, log, others),
            streams=() if self.follower is None else self.follower.told.streams,
            tasks=self.tasking.seen(self.serving.served),
            coordination=server,
        )

    def log_seen(self) -> LogSeen:
        epoch, hash_, incarnation = 0, "", 0
        if self.view is not None:
            epoch, hash_, incarnation = self.view.epoch, self.view.hash, self.view.incarnation
        if self.follower is None:
            return LogSeen(epoch, hash_, incarnation, "no-root", "the agent was given no root", None)
        told, at = self.follower.told, self.follower.told_at
        return LogSeen(
            epoch, hash_, incarnation, told.outcome, told.reason, None if at is None else time.monotonic() - at
        )

    def volumes_seen(self) -> tuple[VolumeSeen, ...]:
        return tuple(watch.seen() for _, watch in sorted(self._volumes.items()))

    def nodes(self) -> tuple[NodeSeen, ...]:
        peers: tuple[Peer, ...] = tuple(self.membership.peers.values())
        return nodes_seen(self.view, self.introduction(), peers, time.monotonic())

    async def _probe(self) -> None:
        """One probe in each period; a few others try before an agent is suspected."""
        while True:
            began = time.monotonic()
            peer = self.membership.next_target()
            if peer is not None and peer.address != self.address:
                answered = await self.reach(peer.address)
                if answered is None and not await self._reached_by_others(peer):
                    self.membership.missed(peer.agent_id, time.monotonic())
            self.membership.tick(time.monotonic())
            await asyncio.sleep(max(0.05, self.settings.period - (time.monotonic() - began)))

    async def _reached_by_others(self, peer: Peer) -> bool:
        if peer.seen is not Seen.ALIVE:
            return False
        asked = [
            self.reach(helper.address, "/probe-for", peer.address) for helper in self.membership.helpers(peer.agent_id)
        ]
        return any(answer is not None and answer.reached for answer in await asyncio.gather(*asked))

    async def _greet(self) -> None:
        """Call at addresses where nobody is known yet: seeds, and where agents were before this one was restarted."""
        while True:
            there = {peer.address for peer in self.membership.peers.values()} | {self.address}
            for address in sorted((self._known | self._elsewhere) - there):
                answer = await self.reach(address, "/handshake")
                if address not in self.refusals:
                    self._elsewhere.discard(address)  # nobody is there, or it is another agent
                if answer is not None:
                    if len(self._known) < MOST_PEERS:
                        self._known |= set(answer.known[:MOST_SIGHTINGS])
                    if answer.sender.agent_id == self.identity.agent_id:
                        self._known.discard(address)
            # What is called no more has said its last word: it is no problem of today.
            called = {*self._known, *self._elsewhere, *self.addresses()}
            self.refusals = {address: why for address, why in self.refusals.items() if address in called}
            await asyncio.sleep(5 * self.settings.period)

    async def _look_at_volumes(self) -> None:
        while True:
            for watch in self._volumes.values():
                watch.probe()
            await asyncio.sleep(VOLUME_SECONDS)

    async def _read_view(self) -> None:
        """Take over what the follower has written, whenever it says so."""
        if self.follower is None:
            return
        while True:
            await self.follower.news.wait()
            self.follower.news.clear()
            try:
                tag, view = await asyncio.to_thread(self._documents)
            except Exception as error:
                self._home_problem = str(error)
                continue
            if tag is not None and self.tag is None:
                logger.info("this agent belongs to cluster %s from now on", tag)
            self.tag, self.view = tag, view
            self._watch_volumes()
            await self._discovered()

    async def _discovered(self) -> None:
        """Tell discovery of the cluster that this agent belongs to, or that is at its root."""
        told = self.follower.told.tag if self.follower is not None else None
        tag = self.tag or (msgspec.convert(told, decodable(Tag)) if told is not None else None)
        if tag is not None:
            try:
                await self.discovering.found(tag)
            except HomeUnwritable as error:
                self._home_problem = str(error)

    def _documents(self) -> tuple[Tag | None, View | None]:
        return self.home.read(TAG, Tag), self.home.read(VIEW, View)

    def _watch_volumes(self) -> None:
        """Watch what the log says that this node has; what was given by hand as long as the log says nothing."""
        wanted = dict(self.settings.volumes)
        for node in self.view.nodes if self.view is not None else ():
            if node.name == self.identity.name:
                wanted |= {volume.name: volume.uri for volume in node.volumes}
        for name, uri in wanted.items():
            known = self._volumes.get(name)
            if known is None or known.uri != uri:
                watch = self._volumes[name] = VolumeWatch(name, uri, deadline=VOLUME_DEADLINE_SECONDS)
                watch.probe()
        for name in self._volumes.keys() - wanted.keys():
            del self._volumes[name]

    async def _remember_peers(self) -> None:
        """Keep where agents are, so that this one finds them again without its seeds."""
        while True:
            there = {p.address for p in self.membership.peers.values() if p.seen is not Seen.UNREACHABLE}
            if there and there != self._written:
                try:
                    await asyncio.to_thread(self.home.write, PEERS, tuple(sorted(there)))
                    self._written, self._home_problem = there, ""
                except HomeUnwritable as error:
                    self._home_problem = str(error)
            await asyncio.sleep(5 * self.settings.period)

    def _note_refusal(self, address: str, why: str) -> None:
        if self.refusals.get(address) != why:
            logger.warning("the agent at %s and this one do not talk: %s", address, why)
        if len(self.refusals) < 100 or address in self.refusals:
            self.refusals[address] = why


def opened(settings: AgentSettings, client: HttpClient) -> Agent:
    """An agent in its home, locked. Raises HomeInUse, HomeDamaged, HomeUnwritable, InvalidRequest."""
    home = Home(Path(settings.home))
    home.lock()
    return Agent(home, settings, client)
