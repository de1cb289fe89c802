"""Commands that change the cluster: their common options, dry runs, and what is told after the commit.

`--dry-run` previews a change: it shows the event and what that would make of the metadata. A commit is told the same
way by every command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
from epochlake.jobs.cli.documents import Changed, Planned
from epochlake.jobs.cli.interruption import committing
from epochlake.jobs.cli.session import Session
from epochlake.jobs.cli.text import changes as text
from epochlake.jobs.views.movements import RingPlan, plan_on_ring
from epochlake.jobs.views.sizes import keyspace_sizes
from epochlake.jobs.views.summaries import summary
from epochlake.metastore.committing.changes import Change, Options, Preview
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.following.history import entries
from epochlake.metastore.log.entry import encode_event
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.differences import diff
from epochlake.metastore.metadata.replication import ring_keyspaces
from epochlake.placement.errors import EpochlakeError


class How(msgspec.Struct, frozen=True):
    """The options of every change."""

    dry_run: bool = False
    reason: str = ""
    request_id: str | None = None
    expect_epoch: int | None = None
    timeout: float | None = None

    def options(self) -> Options:
        """As a commit takes them; the request id is made up when none was given."""
        return {
            "request_id": next_state_id("") if self.request_id is None else self.request_id,
            "reason": self.reason,
            "expect_epoch": self.expect_epoch,
            "timeout": self.timeout,
        }


_PANEL = "Change"
_HOW: dict[str, Any] = {
    "dry_run": Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show the event and what it would change; commit nothing.", rich_help_panel=_PANEL
        ),
    ],
    "reason": Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the history.", rich_help_panel=_PANEL)
    ],
    "request_id": Annotated[
        str | None,
        typer.Option("--request-id", metavar="ID", help="Submitting an id twice commits once.", rich_help_panel=_PANEL),
    ],
    "expect_epoch": Annotated[
        int | None,
        typer.Option(
            "--expect-epoch", metavar="N", help="Reject unless the cluster is at this epoch.", rich_help_panel=_PANEL
        ),
    ],
    "timeout": Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="How long the commit may wait; else the configuration's.",
            min=0,
            rich_help_panel=_PANEL,
        ),
    ],
}


def change_command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose last parameter is `how: How`: it gets the options of every change in its place."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "how"]
        defaults = How()
        common = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, key), annotation=kind)
            for key, kind in _HOW.items()
        ]

        def command(*args: Any, **kwargs: Any) -> None:
            how = How(**{key: kwargs.pop(key) for key in _HOW})
            function(*args, **kwargs, how=how)

        command.__doc__ = function.__doc__
        command.__name__ = function.__name__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *common]}
        command.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
        app.command(name)(command)
        return function

    return register


def carry_out(session: Session, how: How, change: Change[Any], details: Callable[[], dict[str, Any]] = dict) -> None:
    """Show what `change` would do with `--dry-run`, commit it otherwise; `details` are told with it afterwards."""
    options = how.options()
    if how.dry_run:
        preview = session.cluster.preview(
            change, request_id=how.request_id, reason=how.reason, expect_epoch=how.expect_epoch
        )
        session.show(planned(session, preview, details()), text.planned)
        return
    with committing(options["request_id"] or "", session.epoch_of) as tell:
        committed = session.cluster.commit(change, **options)
        tell(committed.epoch)
    session.show(changed(session, committed, details()), text.changed)


def planned(session: Session, preview: Preview, details: dict[str, Any] | None = None) -> Planned:
    """The document of a dry run."""
    encoded = encode_event(preview.event)
    return Planned(
        dry_run=True,
        on_epoch=preview.metadata.epoch,
        event=encoded.event,
        payload=msgspec.json.decode(encoded.payload),
        what=summary(preview.event, preview.after),
        changes=tuple(diff(preview.metadata, preview.after)),
        details=details or {},
        ring=_on_ring(session, preview.metadata, preview.after),
        already=preview.already,
    )


def _on_ring(session: Session, before: ClusterMetadata, after: ClusterMetadata) -> RingPlan | None:
    """What the request that the event makes, if it makes one, would do to the ring."""
    asked = [request for key, request in after.requests.items() if key not in before.requests]
    if not asked or not ring_keyspaces(after):
        return None
    tokens = session.configuration.ring.tokens_per_node
    return plan_on_ring(after, asked[0], tokens, keyspace_sizes(session.storage, before))


def changed(session: Session, committed: Committed, details: dict[str, Any] | None = None) -> Changed:
    """The document of a commit."""
    try:
        entry = entries(session.log(), committed.epoch, committed.epoch)[0]
        what = summary(entry.decode(), session.cluster.metadata)
    except EpochlakeError as error:
        # The change is in the log: that it cannot be described now must not make it look like a failure.
        what = f"committed, but reading it back failed: {error}"
    return Changed(committed.epoch, committed.request_id, committed.already, what, details or {})
