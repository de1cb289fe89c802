"""What must hold at the end of a demo, each looked at in the cluster itself and not in what somebody reported.

A check is a function from what happened, or from what is stored now, to a line with figures. None is
skipped: one that cannot be made does not hold.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from epochlake import Cluster, EpochlakeError
from epochlake.jobs.agent.documents import AgentState
from epochlake.jobs.agent.joining import Phase
from epochlake.jobs.demo import flights
from epochlake.jobs.demo.checksum import Checksum
from epochlake.jobs.demo.choreography import FIFTH, FOURTH, LOST, REPLACEMENT
from epochlake.jobs.demo.directory import DemoDirectory
from epochlake.jobs.demo.stage import FIRST_NODES, settled
from epochlake.jobs.demo.story import ReadBack, Story
from epochlake.jobs.demo.timeline import Arrivals, arrivals
from epochlake.jobs.replicas.intervals import missing
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaSnapshot, open_snapshot
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.following import history
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, RequestState, VolumeId
from epochlake.metastore.storage import places
from epochlake.placement.tokens import tablet_label, tokens_of_label

Findings = list[str]


class Check(msgspec.Struct, frozen=True):
    """Whether something holds, with figures. `findings` is what does not hold, `notes` what is worth knowing."""

    name: str
    holds: bool
    figures: str
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Evidence(msgspec.Struct, frozen=True):
    """What the checks look at: the story, what was read back, and the cluster as it is stored now."""

    story: Story
    place: DemoDirectory
    cluster: Cluster
    read_back: Sequence[ReadBack]
    agents: dict[str, AgentState] | str | None = None
    """What the agents say of themselves, or why that is not known; None in a demo without."""


def examine(evidence: Evidence) -> list[Check]:
    """All checks; one that fails to look is a check that does not hold."""
    checks = CHECKS if evidence.agents is None else (*CHECKS, *CHECKS_OF_AGENTS)
    return [_made(name, check, evidence) for name, check in checks]


def _made(name: str, check: Callable[[Evidence], Check], evidence: Evidence) -> Check:
    try:
        made = check(evidence)
    except (EpochlakeError, OSError) as error:
        made = _check("it could not be looked at", [f"{type(error).__name__}: {error}"])
    return msgspec.structs.replace(made, name=name)


def _check(figures: str, findings: Findings, notes: Findings | None = None) -> Check:
    return Check("", not findings, figures, tuple(findings), tuple(notes or ()))


def _writes(evidence: Evidence) -> Check:
    story = evidence.story
    again = [write for write in story.writes if write.rounds > 1]
    figures = f"{len(story.writes)} of {story.batches} batches, {story.acknowledged:,} rows"
    if again:
        figures += f"; {len(again)} of them planned again because tablets had moved"
    findings = []
    if len(story.writes) != story.batches:
        findings.append(f"{story.batches - len(story.writes)} batches were not acknowledged")
    if story.acknowledged != story.source.rows:
        findings.append(f"the source has {story.source.rows:,} rows, {story.acknowledged:,} were acknowledged")
    return _check(figures, findings)


def _reads(evidence: Evidence) -> Check:
    reads = evidence.story.reads
    findings = [
        f"at epoch {read.epoch} {read.rows:,} rows were counted, {read.expected:,} were acknowledged"
        for read in reads
        if read.rows != read.expected
    ]
    if not reads:
        findings.append("nothing was read")
    return _check(f"{counted(len(reads), 'count')}, each equal to the rows acknowledged by then", findings)


def _growth(evidence: Evidence) -> Check:
    return _arrivals(evidence, {FOURTH: "joined", FIFTH: "joined"})


def _rebuilt(evidence: Evidence) -> Check:
    metadata = evidence.cluster.catch_up()
    replaced = metadata.node(LOST)
    made = _arrivals(evidence, {REPLACEMENT: f"replaced {LOST}"})
    findings = list(made.findings)
    if replaced.state is not NodeState.LEFT:
        findings.append(f"{LOST} is {replaced.state}, it should have left")
    requests = [r for r in metadata.requests.values() if r.state is not RequestState.DONE]
    findings += [f"request {r.request_id} ({r.kind}) is {r.state}" for r in requests]
    if not settled(metadata, [FOURTH, FIFTH, REPLACEMENT]):
        findings.append("something is still on its way")
    return _check(made.figures, findings)


def _arrivals(evidence: Evidence, nodes: dict[str, str]) -> Check:
    writes = [(write.started, write.ended) for write in evidence.story.writes]
    found: dict[str, Arrivals] = arrivals(_entries(evidence), writes, evidence.cluster.catch_up())
    figures, findings = [], []
    for node, how in nodes.items():
        there = found.get(node)
        if there is None or not there.arrived:
            findings.append(f"no tablet arrived on {node}")
            continue
        figures.append(
            f"{node} {how}: {there.arrived} tablets in {there.epochs} epochs, {there.while_writing} during writes"
        )
        if not there.while_writing:
            findings.append(f"tablets moved to {node}, but not while anything was being written")
    return _check("; ".join(figures), findings)


def _loss(evidence: Evidence) -> Check:
    story = evidence.story
    lost = next((deed.at for deed in story.deeds if deed.node == LOST), None)
    if lost is None:
        return _check("", [f"the storage of {LOST} was never lost"])
    replaced = next((deed.at for deed in story.deeds if deed.node == REPLACEMENT), story.ended)
    without = [write for write in story.writes if any(name.startswith(f"{LOST}/") for name in write.missing)]
    reads = [read for read in story.reads if lost < read.started < replaced]
    rows = sum(write.rows for write in without)
    findings = []
    if not without:
        findings.append("no batch was acknowledged without it")
    if not reads:
        findings.append("nothing was read without it")
    if evidence.place.storage_of(LOST).exists():
        findings.append(f"{evidence.place.storage_of(LOST)} is there again: something has written to a lost volume")
    return _check(
        f"{counted(len(without), 'batch', 'batches')} ({rows:,} rows) acknowledged without {LOST}; "
        f"{counted(len(reads), 'count')} before it was replaced",
        findings,
    )


def _read_back_at(level: str) -> Callable[[Evidence], Check]:
    def check(evidence: Evidence) -> Check:
        source: Checksum = evidence.story.source
        results = [result for result in evidence.read_back if result.level == level]
        if not results:
            return _check("", [f"nothing was read back at {level}"])
        result = results[0]
        if result.checksum is None:
            return _check(f"failed after {result.seconds:.1f} s", [result.error or "no reason given"])
        findings = []
        if result.checksum.rows != source.rows:
            findings.append(f"{result.checksum.rows:,} rows were read, the source has {source.rows:,}")
        if result.checksum.digest != source.digest:
            findings.append(f"the checksum is {result.checksum.digest}, that of the source {source.digest}")
        return _check(f"{result.checksum.rows:,} rows, checksum {result.checksum.digest}, as in the source", findings)

    return check


def _misplaced(evidence: Evidence) -> Check:
    metadata = evidence.cluster.catch_up()
    report = verify_replicas(evidence.cluster.storage, metadata, evidence.cluster.ledger)
    findings = [f"{finding.place}: {finding.detail}" for finding in (*report.violations, *report.unreachable)]
    rows = sum(replica.rows for replica in report.replicas)
    if not report.replicas:
        findings.append("there is no replica table")
    return _check(f"INV-TABL-1 on {len(report.replicas)} replica tables with {rows:,} rows", findings)


def _placement(evidence: Evidence) -> Check:
    metadata = evidence.cluster.catch_up()
    table = metadata.table(flights.TABLE)
    findings = []
    for tablet, replicas in enumerate(metadata.tablets.maps[table.table_id]):
        nodes = [metadata.directory.node_of_volume[volume] for volume in replicas]
        names = ", ".join(f"{node.name} ({node.rack}, {node.state})" for node in nodes)
        if len({node.rack for node in nodes}) != evidence.story.replication or any(
            node.state is not NodeState.NORMAL for node in nodes
        ):
            findings.append(f"tablet {tablet} is on {names}")
    count = metadata.tablets.maps[table.table_id].count
    return _check(f"{count} tablets, each on {evidence.story.replication} nodes in as many racks", findings)


def _majorities(evidence: Evidence) -> Check:
    """Every file that any replica of a tablet has is on a majority; on all, unless a write did without one of them.

    A piece without a row is nothing that another replica could lack: where it is known that there is none, none is cut.
    """
    metadata = evidence.cluster.catch_up()
    snapshots = _snapshots(evidence.cluster, metadata)
    tablet_map = metadata.tablets.maps[metadata.table(flights.TABLE).table_id]
    findings: Findings = []
    notes: Findings = []
    files = 0
    for tablet, replicas in enumerate(tablet_map):
        low, high = tokens_of_label(tablet_label(tablet, tablet_map.count))
        held = {volume: snapshots[volume].within(low, high) for volume in replicas}
        everything = {file.file_id: file for present in held.values() for file in present if file.rows}
        files += len(everything)
        lacking = {
            volume: {part.file.file_id for part in missing(everything.values(), present, low, high)}
            for volume, present in held.items()
        }
        for file in sorted(everything):
            on = sum(file not in lacks for lacks in lacking.values())
            if 2 * on <= len(replicas):
                findings.append(f"file {file} of tablet {tablet} is on {on} of {len(replicas)} replicas")
        for volume, lacks in lacking.items():
            if lacks:
                what = f"lacks {len(lacks)} of the {len(everything)} files of tablet {tablet}"
                notes.append(f"{metadata.describe(volume)} {what}: for repair")
    agree = "on every one" if not notes else "on a majority"
    return _check(f"{files} files of {tablet_map.count} tablets, each {agree} of its replicas", findings, notes)


def _bytes(evidence: Evidence) -> Check:
    """The bytes themselves: a file that is on several replicas is the same file."""
    digests: dict[str, set[str]] = defaultdict(set)
    findings: Findings = []
    files = size = 0
    metadata = evidence.cluster.catch_up()
    for volume, snapshot in _snapshots(evidence.cluster, metadata).items():
        for file in snapshot.all_files.values():
            path = Path(places.join(snapshot.address.uri, file.path))
            try:
                data = path.read_bytes()
            except OSError as error:
                findings.append(f"{metadata.describe(volume)}: {file.path}: {error.strerror}")
                continue
            files += 1
            size += len(data)
            digests[file.file_id].add(hashlib.sha256(data).hexdigest())
            if len(data) != file.size:
                findings.append(f"{metadata.describe(volume)}: {file.path} has {len(data)} B, not {file.size}")
    findings += [f"file {file} is not the same everywhere" for file, found in digests.items() if len(found) > 1]
    return _check(
        f"{len(digests)} files stored {files} times ({size / 1e6:.1f} MB), the same bytes everywhere", findings
    )


def _joined(evidence: Evidence) -> Check:
    """The nodes that nobody has added: their agents were answered, and the log has their requests."""
    if not isinstance(evidence.agents, dict):
        return _check("", [str(evidence.agents)])
    epochs = {entry.request_id: entry.epoch for entry in _entries(evidence)}
    figures, findings = [], []
    for node in (*(name for name in FIRST_NODES if name != next(iter(FIRST_NODES))), FOURTH, FIFTH):
        state = evidence.agents.get(node)
        if state is None or state.join is None or state.join.phase is not Phase.ACCEPTED:
            findings.append(f"{node} has not joined by itself")
            continue
        epoch = epochs.get(f"join-{state.agent_id}")
        if epoch is None:
            findings.append(f"no epoch is the request of the agent of {node}")
            continue
        figures.append(f"{node} in epoch {epoch}")
    return _check(", ".join(figures), findings)


def _from_agent_to_agent(evidence: Evidence) -> Check:
    """Bytes on the wire between agents, of all that has arrived on the nodes that came."""
    if not isinstance(evidence.agents, dict):
        return _check("", [str(evidence.agents)])
    findings, notes = [], []
    for node in (FOURTH, FIFTH, REPLACEMENT):
        state = evidence.agents.get(node)
        if state is None or not state.tasks.received:
            findings.append(f"nothing came to {node} from the agent of another node")
        elif state.tasks.undone:
            notes.append(f"{counted(state.tasks.undone, 'file')} for {node} came from the coordinator instead")
    received = sum(state.tasks.received for state in evidence.agents.values())
    served = sum(state.tasks.served for state in evidence.agents.values())
    files = sum(state.tasks.done for state in evidence.agents.values())
    if served < received:
        findings.append(f"agents have got {received:,} B, and given {served:,} B")
    return _check(f"{files} files, {received / 1e6:.1f} MB, between {len(evidence.agents)} agents", findings, notes)


def _log(evidence: Evidence) -> Check:
    cluster = evidence.cluster
    report = history.verify(cluster.log(), cluster.snapshots)
    findings = [f"epoch {finding.epoch}: {finding.code}: {finding.message}" for finding in report.findings]
    if report.events != report.entries:
        findings.append(f"{report.entries - report.events} of its events could not be checked")
    return _check(
        f"{report.entries} epochs without a gap, chained, valid; {counted(report.snapshots, 'snapshot')} as replayed",
        findings,
    )


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def processes(story: Story) -> Check:
    """Whether every other process has ended as it should; to be asked when all have."""
    findings = [
        f"{ended.name} ({ended.command}) ended with exit code {ended.exit_code}, see {ended.messages}"
        for ended in story.processes
        if ended.exit_code != 0
    ]
    if story.streamed is None:
        findings.append("the coordinator did not report what it has done")
    return Check("Processes", not findings, f"{len(story.processes)} others, all ended with 0", tuple(findings))


def _entries(evidence: Evidence) -> list[Entry]:
    return history.entries(evidence.cluster.log())


def _snapshots(cluster: Cluster, metadata: ClusterMetadata) -> dict[VolumeId, ReplicaSnapshot]:
    """The replica tables of all volumes that a tablet names. Raises when one cannot be opened."""
    table = metadata.table(flights.TABLE)
    volumes = {volume for replicas in metadata.tablets.maps[table.table_id] for volume in replicas}
    return {volume: open_snapshot(address_of(cluster.storage, metadata, table, volume)) for volume in sorted(volumes)}


CHECKS: tuple[tuple[str, Callable[[Evidence], Check]], ...] = (
    ("Writes at QUORUM", _writes),
    ("Reads at QUORUM all along", _reads),
    ("Growing while writing", _growth),
    (f"Going on without {LOST}", _loss),
    ("Rebuilding while writing", _rebuilt),
    ("Read back at QUORUM", _read_back_at("QUORUM")),
    ("Read back at ALL", _read_back_at("ALL")),
    ("Rows where they belong", _misplaced),
    ("Replicas in three racks", _placement),
    ("Replicas agree", _majorities),
    ("Stored bytes", _bytes),
    ("Epoch log", _log),
)

CHECKS_OF_AGENTS: tuple[tuple[str, Callable[[Evidence], Check]], ...] = (
    ("Nodes joined by themselves", _joined),
    ("Streaming from agent to agent", _from_agent_to_agent),
)
