"""Changing the servers of a ZooKeeper ensemble while it serves, by its own reconfiguration, one server at a time.

What is under way is kept by the ensemble itself, in one znode, so anybody can go on after anybody. Each step names the
version of the configuration that it was chosen for, and ZooKeeper refuses it at any other. Before a change is called
ended, the version is raised once more: a step of somebody who stood still for an hour is refused after that as well.
(docs/decisions/135-coordination-members.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

import msgspec
from epochlake.metastore.coordination.client import Coordination, NotAllowed, Value
from epochlake.metastore.coordination.ensemble import (
    EnsembleConfiguration,
    Server,
    Step,
    next_step,
    parse_configuration,
    parse_server,
    require_change,
)
from epochlake.metastore.coordination.server_answers import LOOK_SECONDS, ask
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable, UnknownFormat
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadArgumentsError,
    BadVersionError,
    NewConfigNoQuorumError,
    NodeExistsError,
    NoNodeError,
    ReconfigDisabledError,
    ReconfigInProcessError,
    UnimplementedError,
)

logger = logging.getLogger(__name__)

CONFIGURATION = "/zookeeper/config"
"""The znode in which an ensemble says who its servers are."""
NOTES = "/epochlake-ensemble"
"""The znode with a change that is under way: one for the ensemble, however many clusters share it."""

STEP_SECONDS = 60.0
"""How long a server may take to catch up, and the ensemble to take a step."""

_PAUSE_SECONDS = 0.2
_SESSION_SECONDS = 10.0


class Overtaken(InvalidRequest):
    """Somebody else has changed the ensemble since a choice was made."""


class UnfinishedChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Servers as ZooKeeper writes them: those of before, and those that the change leads to."""

    before: tuple[str, ...]
    target: tuple[str, ...]


class EnsembleNotes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept beside the ensemble's own configuration. `nodes`: by number of the server, the node of the cluster
    that it runs on, as somebody has said.
    """

    nodes: dict[str, str] = {}
    change: UnfinishedChange | None = None


class EnsembleSeen(msgspec.Struct, frozen=True):
    """An ensemble at one moment: a choice that was made from it can be begun only while it is still so. `noted`: the
    version of the znode with the notes, None where there was none.
    """

    configuration: EnsembleConfiguration
    notes: EnsembleNotes
    noted: int | None


class EnsembleMover:
    """Looks at the ensemble that a session leads to, and changes it. `step_seconds`: how long a server may take to
    catch up, and the ensemble to take a step; `look_seconds`: how long a server may take to say what it is. `on_step`
    is told what it does next, and may raise, which leaves the change to whoever goes on with it.
    """

    def __init__(
        self,
        coordination: Coordination,
        step_seconds: float = STEP_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.on_step = on_step
        self._coordination = coordination
        self._step_seconds = step_seconds
        self._look_seconds = look_seconds

    def configuration(self) -> EnsembleConfiguration:
        """The servers, no older than the call. Raises CoordinationUnavailable; InvalidRequest for a configuration with
        groups or weights.
        """
        value = self._coordination.barrier(CONFIGURATION, STEP_SECONDS)
        return parse_configuration("" if value is None else value.data.decode())

    def notes(self) -> EnsembleNotes:
        """What is under way, and which nodes servers run on, no older than the call."""
        return self._notes()[0]

    def look(self) -> EnsembleSeen:
        """The servers and what is under way, no older than the call. Raises as `configuration`, and UnknownFormat."""
        configuration = self.configuration()
        notes, value = self._notes()
        return EnsembleSeen(configuration, notes, None if value is None else value.version)

    def note_from(self, seen: EnsembleSeen, target: Collection[Server], nodes: Mapping[int, str]) -> None:
        """Begin a change as it was chosen at a moment, for `go_on` to carry out; refused when anybody has changed
        anything since then, by a change that goes on or has ended. What was under way then is replaced.

        Raises as `begin`, and Overtaken.
        """
        wanted = _in_order(target)
        now = seen.configuration
        if not now.servers:
            raise _not_an_ensemble()
        require_change(now, wanted)
        for server in wanted:
            if now.find(server.number) is None:
                self._wait_until_caught_up(server)
        if not self._take(_nothing(now), now):
            raise overtaken()
        before = seen.notes.change.before if seen.notes.change is not None else tuple(map(str, now.servers))
        change = UnfinishedChange(before, tuple(map(str, wanted)))
        notes = _with_nodes(
            msgspec.structs.replace(seen.notes, change=change), [*wanted, *map(parse_server, before)], nodes
        )
        try:
            self._write(msgspec.json.encode(notes), seen.noted)
        except (BadVersionError, NoNodeError, NodeExistsError) as error:
            raise overtaken() from error

    def go_on(self, target: Collection[Server]) -> EnsembleConfiguration:
        """Carry out the change that was noted, unless another one is in its place. Raises as `begin`."""
        return self._carry_out(_in_order(target))

    def begin(self, target: Collection[Server], nodes: Mapping[int, str] | None = None) -> EnsembleConfiguration:
        """Make `target` the servers of the ensemble, and return when they are. `nodes`: where servers run, as far as it
        is new.

        Also in place of a change that is unfinished: --cancel goes back to the servers of before that one then. Raises
        InvalidRequest for what cannot be an ensemble, and for what somebody else has put in place of it meanwhile;
        ConfigurationError when the ensemble may not be changed; CoordinationUnavailable when a server does not answer
        in time. Whatever is raised or killed, `resume` goes on and `cancel` goes back, if the change was begun.
        """
        wanted = _in_order(target)
        now = self.configuration()
        if not now.servers:
            raise _not_an_ensemble()
        require_named_change(now, wanted, self._look_seconds)
        if self.notes().change is None and _same(now.servers, wanted):
            self._note(lambda notes: _with_nodes(notes, wanted, nodes or {}))
            return now
        for server in wanted:
            if now.find(server.number) is None:
                self._wait_until_caught_up(server)
        # Nothing is written when it would be refused.
        self._raise_version()

        def begun(notes: EnsembleNotes) -> EnsembleNotes:
            before = notes.change.before if notes.change is not None else tuple(map(str, now.servers))
            changed = msgspec.structs.replace(notes, change=UnfinishedChange(before, tuple(map(str, wanted))))
            return _with_nodes(changed, [*wanted, *map(parse_server, before)], nodes or {})

        self._note(begun)
        return self._carry_out(wanted)

    def resume(self) -> EnsembleConfiguration:
        """End the change that was begun. Raises as `begin`, and InvalidRequest where there is none."""
        return self._carry_out(_target_of(self._unfinished()))

    def cancel(self) -> EnsembleConfiguration:
        """Go back to the servers of before the change that was begun. Raises as `resume`."""
        before = _in_order(map(parse_server, self._unfinished().before))

        def back(notes: EnsembleNotes) -> EnsembleNotes:
            if notes.change is None:
                raise _nothing_unfinished()
            change = msgspec.structs.replace(notes.change, target=tuple(map(str, before)))
            return msgspec.structs.replace(notes, change=change)

        self._note(back)
        return self._carry_out(before)

    def _unfinished(self) -> UnfinishedChange:
        change = self.notes().change
        if change is None:
            raise _nothing_unfinished()
        return change

    def _carry_out(self, wanted: tuple[Server, ...]) -> EnsembleConfiguration:
        while True:
            # In this order: who reads a configuration of after the last step of a change knows that it has ended.
            now = self.configuration()
            change = self.notes().change
            if change is None and _same(now.servers, wanted):
                return now
            if change is None or _target_of(change) != wanted:
                raise overtaken("put another change of the coordination members in the place of this one")
            step = next_step(now.servers, wanted)
            if step is None:
                self._end(now, wanted)
                continue
            if step.joining is not None:
                self._wait_until_caught_up(step.joining)
            if self._take(step, now):
                logger.info("ZooKeeper's ensemble: %s", step)
                if step.joining is not None:
                    self._wait_until_caught_up(step.joining)

    def _end(self, now: EnsembleConfiguration, wanted: tuple[Server, ...]) -> None:
        """Take the note of a change away whose servers are there, unless something has moved meanwhile."""
        if not self._take(_nothing(now), now):
            return

        def ended(notes: EnsembleNotes) -> EnsembleNotes:
            if notes.change is None or _target_of(notes.change) != wanted:
                return notes
            return _with_nodes(msgspec.structs.replace(notes, change=None), wanted, {})

        self._note(ended)

    def _raise_version(self) -> None:
        while not self._take(_nothing(now := self.configuration()), now):
            pass

    def _take(self, step: Step, at: EnsembleConfiguration) -> bool:
        """Whether the ensemble took a step from this very configuration; False when it has another one by now."""
        joining = str(step.joining) if step.joining is not None else None
        leaving = str(step.leaving) if step.leaving is not None else None

        def request(client: KazooClient) -> object:
            return client.reconfig_async(joining, leaving, None, at.version)

        deadline = time.monotonic() + self._step_seconds
        while True:
            self.on_step(str(step) if step.joining or at.find(step.leaving or 0) else "the version is raised")
            left = max(_PAUSE_SECONDS, deadline - time.monotonic())
            try:
                self._coordination.call(f"reconfigure ({step})", request, left)
                return True
            except BadVersionError:
                return False
            except (NewConfigNoQuorumError, ReconfigInProcessError) as error:
                if time.monotonic() > deadline:
                    raise CoordinationUnavailable(
                        f"ZooKeeper does not take the step in which {step}: {_why(error)}",
                        hint="Start the servers that are away; then --resume goes on and --cancel goes back",
                    ) from error
                time.sleep(_PAUSE_SECONDS)
            except NotAllowed as error:
                raise ConfigurationError(
                    "ZooKeeper lets only its operator change the ensemble",
                    hint="Give `[zookeeper] operator` as EPOCHLAKE__ZOOKEEPER__OPERATOR=super:PASSWORD "
                    "(DigestAuthenticationProvider.superDigest in the configuration of each server)",
                ) from error
            except (ReconfigDisabledError, UnimplementedError) as error:
                raise _not_an_ensemble() from error
            except BadArgumentsError as error:
                raise InvalidRequest(f"ZooKeeper refuses the step in which {step}") from error

    def _wait_until_caught_up(self, server: Server) -> None:
        """Wait until a server of this number follows this ensemble, with all that it had when it was asked."""
        deadline = time.monotonic() + self._step_seconds
        self.on_step(f"server {server.number} catches up")
        while (trouble := self._behind(server, deadline)) and time.monotonic() < deadline:
            self.on_step(f"server {server.number} catches up")
            time.sleep(_PAUSE_SECONDS)
        if trouble:
            raise CoordinationUnavailable(
                f"server {server.number} at {server.reached_at} does not follow the ensemble: {trouble}",
                hint="Prepare it by `epochlake metadata prepare-server` on its machine, and start it",
            )

    def _behind(self, server: Server, deadline: float) -> str:
        """Why a server does not have all that the ensemble has now, else empty."""
        answer = ask(server, self._look_seconds)
        if answer.trouble:
            return answer.trouble
        if answer.number != server.number:
            return f"it is server {answer.number}"
        now = self.configuration()
        if answer.configuration is None or not _same(answer.configuration.servers, now.servers):
            return "the servers that it knows are others"
        try:
            # A `sync` by way of the server itself: answered when it has what its leader had.
            with Coordination(
                server.reached_at,
                self._coordination.base,
                session_timeout=_SESSION_SECONDS,
                connect_timeout=max(self._look_seconds, deadline - time.monotonic()),
            ) as through:
                known = EnsembleMover(through, self._step_seconds).configuration()
        except CoordinationUnavailable as error:
            return error.statement
        return "" if known.version >= now.version else "it is behind"

    def _notes(self) -> tuple[EnsembleNotes, Value | None]:
        value = self._coordination.barrier(NOTES, STEP_SECONDS)
        if value is None or not value.data:
            return EnsembleNotes(), value
        try:
            return msgspec.json.decode(value.data, type=decodable(EnsembleNotes)), value
        except msgspec.MsgspecError as error:
            raise UnknownFormat(
                f"the znode {NOTES} was written by another version, or by somebody else: {error}",
                hint="Use the newest version; when no change of the servers is under way, delete that znode",
            ) from error

    def _note(self, change: Callable[[EnsembleNotes], EnsembleNotes]) -> None:
        """Write what `change` makes of the notes, of whatever somebody else has made of them meanwhile."""
        while True:
            notes, value = self._notes()
            changed = change(notes)
            if changed == notes:
                return
            try:
                self._write(msgspec.json.encode(changed), None if value is None else value.version)
                return
            except (BadVersionError, NoNodeError, NodeExistsError):
                # Also our own, when the answer was lost: what `change` does is done then, and is looked at again.
                continue

    def _write(self, data: bytes, version: int | None) -> None:
        if version is None:
            self._coordination.call(f"note a change at {NOTES}", lambda client: client.create_async(NOTES, data))
        else:
            self._coordination.call(f"note a change at {NOTES}", lambda client: client.set_async(NOTES, data, version))


def require_named_change(now: EnsembleConfiguration, wanted: Collection[Server], look_seconds: float) -> None:
    """Raise InvalidRequest where an ensemble cannot become what somebody has named; those who leave are asked whether
    they still answer, where that makes a difference.
    """
    dead = []
    if sum(one.votes for one in wanted) % 2 == 0:
        stay = {one.number for one in wanted if one.votes}
        dead = [one.number for one in now.voters if one.number not in stay and ask(one, look_seconds).trouble]
    require_change(now, wanted, dead)


def overtaken(did: str = "changed the coordination members meanwhile") -> Overtaken:
    """What somebody else has done."""
    return Overtaken(f"somebody else has {did}", hint="See `epochlake metadata reconfigure --coordination --status`")


def _nothing(now: EnsembleConfiguration) -> Step:
    """A step that changes nothing but the version: a server leaves that was not there."""
    return Step(leaving=max((server.number for server in now.servers), default=0) + 1)


def _in_order(servers: Collection[Server] | map[Server]) -> tuple[Server, ...]:
    return tuple(sorted(servers, key=lambda server: server.number))


def _target_of(change: UnfinishedChange) -> tuple[Server, ...]:
    return _in_order(map(parse_server, change.target))


def _same(servers: Collection[Server], others: Collection[Server]) -> bool:
    return _in_order(servers) == _in_order(others)


def _with_nodes(notes: EnsembleNotes, servers: Collection[Server], nodes: Mapping[int, str]) -> EnsembleNotes:
    """With what was said of the nodes of servers, as long as they have to do with the ensemble."""
    known = notes.nodes | {str(number): node for number, node in nodes.items()}
    kept = {str(server.number): known[str(server.number)] for server in servers if str(server.number) in known}
    return msgspec.structs.replace(notes, nodes=dict(sorted(kept.items())))


def _why(error: Exception) -> str:
    if isinstance(error, ReconfigInProcessError):
        return "another step goes on"
    return "a majority of the voters of after it would not follow the leader"


def _not_an_ensemble() -> ConfigurationError:
    return ConfigurationError(
        "the servers of this ZooKeeper cannot be changed while it serves",
        hint="Set reconfigEnabled=true and standaloneEnabled=false in the configuration of each server, as "
        "conf/zookeeper.cfg has it, and start them again one by one",
    )


def _nothing_unfinished() -> InvalidRequest:
    return InvalidRequest("no change of the coordination members is unfinished")
