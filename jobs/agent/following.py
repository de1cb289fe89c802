"""Following the log into an agent's home: `python -m epochlake.jobs.agent.following`, a process of its own.

Reading Delta and Arrow takes more memory than an agent may have when it is idle, and storage that hangs takes the
process with it. So the agent starts this one when there may be news, and kills it when it is late. It copies what is
new, entry by entry along the chain, then the newest snapshot, then the view; killed anywhere, the next one goes on from
what is there.

A root whose log does not hold the last entry of the copy is not followed, and the copy stays: it may be the only one
that knows what the root has lost.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

import msgspec
from epochlake.jobs.administration.features import announce_version
from epochlake.jobs.agent.home import ENSEMBLE, TAG, VIEW, Home, HomeDamaged, View, write_whole
from epochlake.jobs.agent.log_copy import LineEnd, LogCopy
from epochlake.jobs.agent.messages import LoggedNode, ReaderSeen, StreamSeen, Tag, VolumePlace
from epochlake.jobs.agent.processes import tell_agent
from epochlake.jobs.cluster import Cluster, open_cluster
from epochlake.jobs.views.change_streams import ReaderStatus, reachable_statuses
from epochlake.jobs.views.status import zookeeper_runs
from epochlake.metastore import configuration as configurations
from epochlake.metastore.coordination.publication import PublishedEnsemble
from epochlake.metastore.coordination.published import newest
from epochlake.metastore.errors import LogUnreadable, LogWentBack, NotInitialised
from epochlake.metastore.following.snapshot_format import decode_snapshot
from epochlake.metastore.log.entry import Entry, Position, position_of, verify_next
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError

logger = logging.getLogger(__name__)

BATCH = 1_000
"""Entries are put on the disk so many at a time."""

KEPT_SNAPSHOTS = 2
QUIET_SECONDS = 10.0
"""After so long without news a follower ends; the agent looks for news more cheaply than it does."""
LOOK_SECONDS = 1.0
ANNOUNCE_SECONDS = 10.0
"""How long the log is waited for when an agent says what it runs; less than what the agent takes for a hang."""


class Outcome(StrEnum):
    """What came of following. Only `followed` moves the copy."""

    FOLLOWED = "followed"
    NO_CLUSTER = "no-cluster"
    NOT_A_MEMBER = "not-a-member"
    ANOTHER_CLUSTER = "another-cluster"
    LEFT = "left"
    WENT_BACK = "went-back"
    FAILED = "failed"


class Followed(msgspec.Struct, frozen=True):
    """What the process tells the agent, as its last line. `tag` is that of the root."""

    outcome: Outcome
    reason: str = ""
    tag: Tag | None = None
    epoch: int = 0
    damaged: str | None = None
    streams: tuple[StreamSeen, ...] = ()


def follow_once(home: Home, cluster: Cluster, name: str, mine: Tag | None) -> Followed:
    """Bring the copy to the end of the log, when this agent may. `mine`: the agent's tag, None while it is blank.

    A blank agent follows a cluster only when its node is in the log: somebody has added it.
    """
    metadata = cluster.catch_up()
    tag = Tag(metadata.identity.name, metadata.identity.cluster_id)
    if mine is not None and mine.id != tag.id:
        reason = f"the root {cluster.configuration.root} holds cluster {tag}, and this agent belongs to {mine}"
        return Followed(Outcome.ANOTHER_CLUSTER, reason, tag)
    nodes = _nodes(metadata)
    here = next((node for node in nodes if node.name == name and node.state != "left"), None)
    if here is None and mine is None:
        return Followed(Outcome.NOT_A_MEMBER, f"node {name!r} is not in the log of cluster {tag}", tag)
    if mine is None:
        home.write(TAG, tag)
    try:
        position = _copy(home, cluster)
    except LogWentBack as error:
        return Followed(Outcome.WENT_BACK, str(error), tag)
    _keep_snapshot(home, cluster, metadata)
    enabled, upgrade = tuple(sorted(metadata.features.enabled)), metadata.upgrade.state.value
    view = View(tag, position.epoch, position.hash, position.incarnation, time.time(), nodes, enabled, upgrade)
    known = home.read(VIEW, View)
    if known is None or msgspec.structs.replace(known, seen_at=view.seen_at) != view:
        home.write(VIEW, view)
    outcome = Outcome.FOLLOWED if here is not None else Outcome.LEFT
    return Followed(outcome, "" if here is not None else f"node {name!r} is not in the log", tag, position.epoch)


def keep_ensemble(home: Home, cluster: Cluster, mine: Tag | None) -> None:
    """Keep what was published of the ensemble, for those who ask this agent. A root that has gone back, or says nothing
    any more, takes nothing of it away.
    """
    if mine is None:
        return
    try:
        found = newest(cluster.storage, cluster.root.coordination, mine.id)
    except EpochlakeError as error:
        logger.warning("what is published of the ZooKeeper ensemble is not kept: %s", error)
        return
    known = home.read(ENSEMBLE, PublishedEnsemble)
    if found is None or found == known:
        return
    if known is None or known.cluster_id != mine.id or found.number >= known.number:
        home.write(ENSEMBLE, found)


def announced(home: Home, cluster: Cluster, name: str) -> bool:
    """Say in the log what runs here, where it does not say so yet. False: not now; the next follower tries again.

    No ZooKeeper is started for it: that is for who needs one.
    """
    if not zookeeper_runs(cluster):
        return False
    try:
        announce_version(cluster, name, home.identity(name).agent_id, timeout=ANNOUNCE_SECONDS)
    except (EpochlakeError, OSError) as error:
        logger.warning("the version of this agent is not announced: %s", error)
        return False
    return True


def verify_copy(home: Home) -> str | None:
    """Check the whole copy along its chain. What comes after a break is put aside, and read from the root again.

    What was wrong, in words; None when the copy holds.
    """
    copy, position = LogCopy(home), Position()
    try:
        for _, line in copy.lines():
            position = verify_next(position, _entry(line))
    except (HomeDamaged, LogUnreadable, msgspec.MsgspecError) as error:
        copy.put_aside_after(position.epoch)
        return f"the copy was damaged after epoch {position.epoch}, and goes on from there: {error}"
    return None


def _copy(home: Home, cluster: Cluster) -> Position:
    """Append what the log has after the copy's end. Raises LogWentBack when the log does not hold that end."""
    copy = LogCopy(home)
    end = copy.end()
    position = Position() if end is None else _position(end)
    log = cluster.log()
    found = log.read(max(position.epoch - 1, 0))
    if position.epoch:
        if not found or position_of(found[0]) != position:
            ends_at = found[-1].epoch if found else position.epoch - 1
            raise LogWentBack(ends_at, position.epoch, position.hash, f"the copy in {home.directory}")
        found = found[1:]
    for batch in _batches(found):
        lines = []
        for entry in batch:
            position = verify_next(position, entry)
            lines.append((entry.epoch, msgspec.json.encode(entry) + b"\n"))
        copy.append(lines)
    return position


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    waiting: list[Entry] = []
    for entry in entries:
        waiting.append(entry)
        if len(waiting) == BATCH:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _keep_snapshot(home: Home, cluster: Cluster, metadata: ClusterMetadata) -> None:
    """Copy the newest snapshot of the root unless it is here. One that cannot be read is not needed: the log is."""
    try:
        epochs = [epoch for epoch in cluster.snapshots.epochs() if epoch <= metadata.epoch]
        if not epochs or (path := home.snapshots / f"{epochs[-1]:020}.snapshot").exists():
            return
        held = cluster.storage.read_bytes(cluster.snapshots.path(epochs[-1]))
        decode_snapshot(held)
    except EpochlakeError as error:
        logger.warning("no snapshot is copied: %s", error)
        return
    write_whole(path, held, home)
    for old in sorted(home.snapshots.glob("*.snapshot"))[:-KEPT_SNAPSHOTS]:
        old.unlink(missing_ok=True)


def _nodes(metadata: ClusterMetadata) -> tuple[LoggedNode, ...]:
    return tuple(
        LoggedNode(
            node.name,
            node.host_id,
            str(node.state),
            node.datacenter,
            node.rack,
            tuple(VolumePlace(volume.name, volume.uri) for volume in node.volumes),
        )
        for node in metadata.directory.nodes.values()
        if str(node.state) != "left"
    )


def _streams(cluster: Cluster) -> tuple[StreamSeen, ...]:
    """The change streams that the root tells of; those that it does not are left out."""
    found = reachable_statuses(cluster, cluster.metadata)
    return tuple(
        StreamSeen(one.table, one.writes, one.bytes, one.open, one.oldest_at, tuple(map(_reader, one.readers)))
        for one in found
        if one.obstacle is None
    )


def _reader(one: ReaderStatus) -> ReaderSeen:
    return ReaderSeen(one.name, one.behind, time.time() - one.lag_seconds if one.behind else None, one.gone)


def _entry(line: bytes) -> Entry:
    return msgspec.json.decode(line, type=decodable(Entry))


def _position(end: LineEnd) -> Position:
    return Position(end.epoch, end.state_id, end.hash, end.incarnation)


def main(arguments: list[str] | None = None) -> int:
    """Follow until nothing has happened for a while; print a `Followed` as JSON after each look with news."""
    parser = argparse.ArgumentParser(prog="following")
    for option in ("--home", "--name"):
        parser.add_argument(option, required=True)
    for option in ("--conf", "--root"):
        parser.add_argument(option)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    home = Home(given.home)
    damaged = None
    if not _alone(home):
        _tell(Followed(Outcome.FAILED, "an earlier follower of this home has not ended yet"))
        return 0
    agent = os.getppid()
    try:
        damaged = verify_copy(home) if given.verify else None
        settings = configurations.load(Path(given.conf) if given.conf else None, root=given.root)
        with open_cluster(settings) as cluster:
            told, announces = None, True
            quiet_since = time.monotonic()
            while True:
                followed = msgspec.structs.replace(
                    follow_once(home, cluster, given.name, home.read(TAG, Tag)), damaged=damaged
                )
                keep_ensemble(home, cluster, home.read(TAG, Tag))
                if followed != told:
                    _tell(msgspec.structs.replace(followed, streams=_streams(cluster)))
                    told, quiet_since = followed, time.monotonic()
                else:
                    tell_agent("")  # only that this process does not hang
                if announces and followed.outcome is Outcome.FOLLOWED and not given.once:
                    # After the agent has been told: nothing that the log says waits for ZooKeeper.
                    announces = announced(home, cluster, given.name)
                quiet = time.monotonic() - quiet_since > QUIET_SECONDS
                if quiet and not given.once:
                    # What changes all the time is no news, and is told again at the end.
                    _tell(msgspec.structs.replace(followed, streams=_streams(cluster)))
                if given.once or quiet or os.getppid() != agent:
                    return 0
                time.sleep(LOOK_SECONDS)
    except NotInitialised as error:
        _tell(Followed(Outcome.NO_CLUSTER, str(error), damaged=damaged))
    except LogWentBack as error:
        _tell(Followed(Outcome.WENT_BACK, str(error), damaged=damaged))
    except EpochlakeError as error:
        _tell(Followed(Outcome.FAILED, str(error), damaged=damaged))
    return 0


def _alone(home: Home) -> bool:
    """Whether no other process appends to the copy: the follower of a killed agent may live a little longer."""
    home.directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(home.directory / "following.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return False
    return True


def _tell(followed: Followed) -> None:
    tell_agent(msgspec.json.encode(followed).decode())


if __name__ == "__main__":
    sys.exit(main())
