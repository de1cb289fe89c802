"""`log …`: reading, comparing and verifying the history; keeping the log small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from epochlake.jobs.administration.switches import SnapshotOnDemand
from epochlake.jobs.cli.arguments import Limit, of
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.documents import (
    Compacted,
    FindingRow,
    Healed,
    LogEntry,
    Verified,
)
from epochlake.jobs.cli.interruption import committing, interrupted_says
from epochlake.jobs.cli.session import Output, Session
from epochlake.jobs.cli.text import log as text
from epochlake.jobs.cli.text.changes import differences
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.upkeep.log_upkeep import compact_log, heal_files, heal_log, plan_healing, stored_twice
from epochlake.jobs.upkeep.lost_epochs import Look, accept_loss, beyond
from epochlake.jobs.upkeep.verification import ReplicaFinding, ReplicaReport, verify_replicas
from epochlake.jobs.views.history import differences as differences_of
from epochlake.jobs.views.history import log_row
from epochlake.metastore.committing.arguments import require_request_id
from epochlake.metastore.errors import LogUnreadable
from epochlake.metastore.following.history import VerificationReport, entries, metadata_at, verify
from epochlake.metastore.following.history import diff as diff_of
from epochlake.metastore.following.quorums import verify_quorums
from epochlake.metastore.following.snapshots import Snapshots
from epochlake.metastore.following.verification import BEHIND, CHECKPOINT_DAMAGED, DUPLICATE, NOT_COMPARED, Finding
from epochlake.metastore.log.checkpoints import damaged as damaged_checkpoints
from epochlake.metastore.log.compacting import StoredTwice
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import KINDS
from epochlake.placement.errors import InvalidRequest, InvariantViolated

app = typer.Typer(help="The epoch log: what changed, when, by whom, why.", no_args_is_help=True)

Epoch = Annotated[int, typer.Argument(metavar="EPOCH", help="As `log list` numbers them.", show_default=False)]


@app.command("list")
def list_(
    context: typer.Context,
    first: Annotated[int | None, typer.Option("--first", metavar="EPOCH", min=1, help="From this epoch on.")] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="EPOCH", min=1, help="Up to this epoch.")] = None,
    event: Annotated[str | None, typer.Option("--event", metavar="KIND", help="Only events of this kind.")] = None,
    limit: Limit = 50,
) -> None:
    """List epochs, the newest last. Where the log does not hold, what can be read is listed, and the error told."""
    session = of(context)
    if event is not None and event not in KINDS:
        raise InvalidRequest(f"there are no events {event!r}: they are {', '.join(sorted(KINDS))}")
    metadata, stopped = _newest(session)
    unread = 0
    if first is None and last is None and event is None and limit and metadata is not None:
        first = max(1, metadata.epoch - limit + 1)  # no need to read the whole log for its end
        unread = first - 1
    found = entries(session.log(), first or 1, last)
    chosen = [entry for entry in found if event in (None, entry.event)]
    shown = chosen[-limit if limit else 0 :]
    left_out = len(chosen) - len(shown) + unread
    rows = [msgspec.structs.replace(log_row(entry, metadata), left_out=left_out) for entry in shown]
    session.show(rows, text.log_list)
    if left_out and session.output is Output.JSON:
        session.warn(f"{left_out:,} older epochs are left out: --limit 0 lists all")
    if stopped is not None:
        # Not before: a list of what can be read is of use, and it is not the whole log.
        raise stopped


@app.command("show")
def show(context: typer.Context, epoch: Epoch) -> None:
    """Show an epoch: its event, its place in the chain, and what it changed."""
    session = of(context)
    log, snapshots = session.log(), Snapshots(session.storage, session.places.snapshots)
    entry = entries(log, epoch, epoch)[0]
    before = ClusterMetadata.empty() if epoch == 1 else metadata_at(log, snapshots, epoch - 1)
    after = before.apply(entry.decode(), entry.state_id)
    newest, stopped = _newest(session)
    _warn_of(session, stopped)
    row = log_row(entry, newest or after)
    session.show(
        LogEntry(
            **{name: getattr(row, name) for name in row.__struct_fields__ if name != "left_out"},
            state_id=entry.state_id,
            previous_state_id=entry.previous_state_id,
            incarnation=entry.incarnation,
            format=entry.format,
            previous_hash=entry.previous_hash,
            hash=entry.hash,
            attachment_bytes=len(entry.attachment or b""),
            payload=msgspec.json.decode(entry.payload),
            changes=tuple(diff_of(before, after)),
        ),
        text.log_entry,
    )


@app.command("diff")
def diff(
    context: typer.Context,
    before: Annotated[int, typer.Argument(metavar="EPOCH", help="The earlier one.", show_default=False)],
    after: Annotated[int | None, typer.Argument(metavar="[EPOCH]", help="Default: the newest.")] = None,
) -> None:
    """Show what differs between two epochs."""
    session = of(context)
    newer = session.cluster.at(after)
    older = session.cluster.at(before)
    session.show(differences_of(older, newer), differences)


@app.command("verify")
def verify_(
    context: typer.Context,
    tablets: Annotated[
        bool,
        typer.Option(
            "--tablets",
            help="Look at every replica table as well: whether it holds rows of its own tablets and ranges only "
            "(INV-TABL-1).",
        ),
    ] = False,
    quorums: Annotated[
        bool,
        typer.Option("--quorums", help="Whether at every epoch each read quorum met each write quorum, on replay."),
    ] = False,
) -> None:
    """Verify the whole log: its hash chain, every event, every snapshot. Exit code 4 when something does not hold.

    A torn log is verified up to where it is torn, and the finding there says what to do. So does one about a checkpoint
    of the log's table that is not what was written.
    """
    session = of(context)
    # Not through a follower: it stops at the first entry that does not hold, and all are to be told.
    log = session.log()
    report = verify(log, Snapshots(session.storage, session.places.snapshots))
    below = not session.log_place.table
    copied = session.log_place.delta().stored_twice() if report.holds and below else StoredTwice()
    replicas = _replicas(session.cluster) if tablets and report.holds else None
    disjoint = verify_quorums(session.log()) if quorums and report.holds else ()
    look = beyond(session.cluster, replicas=tablets) if report.holds else Look((), ())
    others = [*_copied(copied), *_lost(look, report.last_epoch), *disjoint]
    checkpoints = [str(one) for one in damaged_checkpoints(session.storage, session.places.log)] if below else []
    document = _verified(report, replicas, others, look.unasked, checkpoints, quorums=quorums and report.holds)
    session.show(document, text.verified)
    if not document.holds:
        raise InvariantViolated(f"{len(document.findings)} of what must hold does not", hint="See the findings")


@app.command("compact")
def compact(context: typer.Context) -> None:
    """Put the log's small files together; no entry changes."""
    session = of(context)
    with interrupted_says("no entry was changed: run it again"):
        done = compact_log(session.cluster)
    session.show(Compacted(done.files, len(done.groups)), text.compacted)


@app.command("heal")
def heal(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> None:
    """Make torn and missing commits of the log whole, and store entries once that were stored more than once.

    A torn commit at the end, as after a power cut, names its entries again when they lie whole beside it; one that held
    none becomes empty. One in the middle, torn or missing, names again what leads by its hashes from the entry before
    it to the entry after it. Entries whose data file is damaged or gone are put back from other files that hold them,
    as compaction leaves them, and from the copies of log members. A damaged checkpoint of the log's table is put aside
    where the commits that it stands for are whole. No entry is lost or changed: copies that are the same become one.
    Refused where that is not certain, and where two entries of one epoch differ.
    """
    session = of(context)
    session.log_place.delta()  # refused where Spark keeps the files
    # Before the cluster is opened, which a torn log refuses.
    mended = tuple(map(str, (plan_healing if dry_run else heal_files)(session.storage, session.places)))
    if mended and dry_run:
        session.show(Healed(True, 0, (), 0, 0, mended), text.healed)
        return
    found = stored_twice(session.cluster) if dry_run else heal_log(session.cluster)
    session.show(
        Healed(
            dry_run=dry_run,
            copies=found.copies,
            epochs=found.ranges,
            files_removed=found.rewriting.files,
            files_added=len(found.rewriting.groups),
            mended=mended,
        ),
        text.healed,
    )


@app.command("accept-loss")
def accept_loss_(
    context: typer.Context,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the history.")] = "",
    request_id: Annotated[
        str | None, typer.Option("--request-id", metavar="ID", help="Submitting it twice commits once.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is lost.")] = False,
) -> None:
    """Go on where the log ends, after its newest epochs were lost for good: a new incarnation begins.

    For a log that was restored from an older copy, has lost its end, or has a hole or a damaged data file that `log
    heal` cannot fill: then everything from there on is lost, and put aside. Look for a newer copy first; --dry-run
    names the epochs. Refused where log members keep copies: `metadata recover` restores the log from them. What was
    planned at the lost epochs can not land any more. Run `epochlake repair` on every table afterwards: replicas may
    have moved.
    """
    session = of(context)
    require_request_id(request_id)
    request_id = request_id or next_state_id("")
    with committing(request_id, session.epoch_of) as tell:
        accepted = accept_loss(session.configuration, reason=reason, request_id=request_id, dry_run=dry_run)
        if accepted.epoch is not None:
            tell(accepted.epoch)
    session.show(accepted, text.accepted_loss)


@change_command(app, "snapshot")
def snapshot(context: typer.Context, how: How) -> None:
    """Take a snapshot of the metadata, from which catching up can begin."""
    carry_out(of(context), how, SnapshotOnDemand())


def _newest(session: Session) -> tuple[ClusterMetadata | None, LogUnreadable | None]:
    """The newest metadata, for names; None and why when the log cannot be followed: its entries can be shown still."""
    try:
        return session.cluster.catch_up(), None
    except LogUnreadable as error:
        return None, error


def _warn_of(session: Session, stopped: LogUnreadable | None) -> None:
    if stopped is not None:
        session.warn(f"the log does not hold: {stopped}. See `epochlake log verify`")


def _copied(found: StoredTwice) -> list[Finding]:
    """Findings about entries that are stored more than once, which readers pass over."""
    return [
        Finding(
            first,
            DUPLICATE,
            f"epochs {first} to {last} are stored more than once, as the same entries: run `epochlake log heal`",
        )
        for first, last in found.ranges
    ]


def _lost(look: Look, last_epoch: int) -> list[Finding]:
    """Findings about epochs that others know and the log does not hold."""
    advice = "restore the newest copy of the log, or see `epochlake log accept-loss`"
    return [
        Finding(
            known.epoch,
            BEHIND,
            f"known to {known.by} (incarnation {known.incarnation}), and not in the log, which ends at epoch "
            f"{last_epoch}: {advice}",
        )
        for known in look.known
    ]


def _verified(
    report: VerificationReport,
    replicas: ReplicaReport | None,
    others: Sequence[Finding],
    unasked: Sequence[str],
    checkpoints: Sequence[str],
    *,
    quorums: bool,
) -> Verified:
    findings = [FindingRow(f"epoch {f.epoch}", f.code, f.message) for f in (*report.findings, *others)]
    findings += [FindingRow("log", CHECKPOINT_DAMAGED, message) for message in checkpoints]
    notices = [FindingRow("log", NOT_COMPARED, message) for message in unasked]
    if replicas is not None:
        findings += [_finding(f) for f in replicas.violations]
        notices += [_finding(f) for f in (*replicas.unswept, *replicas.differing, *replicas.unreachable)]
    return Verified(
        holds=not findings,
        last_epoch=report.last_epoch,
        entries=report.entries,
        events=report.events,
        snapshots=report.snapshots,
        replicas=len(replicas.replicas) if replicas is not None else 0,
        quorums=quorums,
        findings=tuple(findings),
        notices=tuple(notices),
    )


def _finding(found: ReplicaFinding) -> FindingRow:
    where = (
        f"{found.table} on {found.place}" if found.tablet is None else f"{found.table}/{found.tablet} on {found.place}"
    )
    return FindingRow(where, found.kind, found.detail)


def _replicas(cluster: Cluster) -> ReplicaReport:
    return verify_replicas(cluster.storage, cluster.catch_up(), cluster.ledger, cluster.receipts)
