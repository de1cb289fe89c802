"""Changes that a person looks at before they are made: plan → approval → apply → verify.

What is approved is the plan of one epoch. Where the cluster has moved on meanwhile it is not applied (Rejected,
epoch-moved): it is planned and shown again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import TaskGroup
from epochlake.jobs.airflow_provider.ending import AirflowSkipException
from epochlake.jobs.airflow_provider.hook import DEFAULT_CONNECTION
from epochlake.jobs.airflow_provider.operators import EpochlakeOperator
from epochlake.jobs.airflow_provider.submitting import EpochlakeVerifyOperator
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.airflow_provider.task_cluster import TaskCluster
    from epochlake.jobs.views.balancing import BalancePlan
    from epochlake.jobs.views.resizing import ResizePlan

SHOWN = 30
"""As many moves are shown one by one."""
WIDTH = 140
AGAIN_SECONDS = 10.0
"""Where another coordinator leads, what is left is looked at so often; looking measures the replicas."""


class EpochlakePlanBalanceOperator(EpochlakeOperator):
    """What balancing would do now, for a person to look at: moves of tablets, and tables to be split or merged.

    Its value has the `epoch`, the numbers of `moves`, `bytes` and `resizes`, and `text` to read. Skips what follows
    where there is nothing to do. A review means something only while nothing is balanced without it, so balancing has
    to be paused (`epochlake balance pause`); else the task fails for good.
    """

    def work(self, context: Mapping[str, Any], cluster: TaskCluster) -> Any:
        """The plan."""
        from epochlake.jobs.airflow_provider.showing import as_text
        from epochlake.jobs.cli.text.plan import balance_plan, resize_plan
        from rich.text import Text

        moving, resizing = planned(cluster)
        if moving.balancing:
            raise InvalidRequest(
                f"balancing of cluster {cluster.metadata.identity.name!r} is not paused, so its coordinator moves "
                "tablets without a review",
                hint="Run `epochlake balance pause` once",
            )
        resizes = sum(table.changes for table in resizing.tables)
        parts = balance_plan(moving, explain=True, limit=SHOWN)
        text = as_text([*parts, Text(), *resize_plan(resizing)] if resizes else parts, WIDTH)
        self.log.info("%s", text)
        if not moving.moves and not resizes:
            raise AirflowSkipException(f"the cluster is balanced as it is, at epoch {moving.epoch}")
        return {
            "epoch": moving.epoch,
            "moves": len(moving.moves),
            "bytes": sum(move.bytes for move in moving.moves),
            "resizes": resizes,
            "text": text,
        }


class EpochlakeBalanceOperator(EpochlakeOperator):
    """Balance the cluster as it was planned at `epoch`, to the end, and pause balancing again.

    Fails for good where the cluster is at another epoch by now. A try that was killed is gone on with: what its run has
    switched on is known by its request id. `patience`: after so long without an end it is worth retrying.
    Where somebody pauses balancing meanwhile, the task stops and fails for good.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id", "epoch", "reason")

    def __init__(
        self, *, epoch: int | str, reason: str = "", patience: timedelta = timedelta(hours=12), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.epoch = epoch
        self.reason = reason
        self.patience = patience
        self._stop = threading.Event()

    def work(self, context: Mapping[str, Any], cluster: TaskCluster) -> Any:
        """From which epoch to which, and what is left."""
        from epochlake.jobs.administration import pause_balancing, resume_balancing
        from epochlake.metastore.errors import WaitTimeout

        begun = resume_balancing(cluster, expect_epoch=int(self.epoch), **self._said())
        deadline = time.monotonic() + self.patience.total_seconds()
        # Switched off again: by an earlier try that was killed after that, or by somebody who wants it to stop.
        while cluster.catch_up().switches.balancing and not self._balanced(cluster):
            if self._stop.is_set() or time.monotonic() > deadline:
                raise WaitTimeout(
                    f"balancing from epoch {begun.epoch} on has not ended", hint="Try again: it goes on where it is"
                )
        ended = pause_balancing(cluster, **self._said())
        return {"first_epoch": begun.epoch, "last_epoch": ended.epoch}

    def on_kill(self) -> None:
        """Stop between two steps. Balancing stays switched on, for the next try."""
        self._stop.set()

    def _balanced(self, cluster: TaskCluster) -> bool:
        """Coordinate for a while, here or where another one leads; whether nothing is left to move."""
        from epochlake.jobs.coordinator.coordinator import Coordinator

        done = Coordinator(cluster).run(until_idle=True, should_stop=self._stop.is_set)
        self.log.info("epoch %s: %s tablets moved", done.last_epoch, done.tablets_moved)
        moving, resizing = planned(cluster)
        if done.idle and not moving.moves and not any(table.changes for table in resizing.tables):
            return True
        self._stop.wait(AGAIN_SECONDS)
        return False

    def _said(self) -> dict[str, Any]:
        return {"reason": self.reason} if self.reason else {}


def rebalance_with_review(
    group_id: str = "rebalance",
    *,
    epochlake_conn_id: str | None = DEFAULT_CONNECTION,
    assigned_users: Any = None,
    notifiers: Collection[Any] = (),
    response_timeout: timedelta | None = None,
    patience: timedelta = timedelta(hours=12),
) -> TaskGroup:
    """The tasks `plan`, `approve`, `apply` and `verify` in a group: nothing moves before a person has approved the
    plan.

    `assigned_users`, `notifiers` and `response_timeout` are those of Airflow's `ApprovalOperator`. Rejected, or with
    nothing to move, what follows is skipped.
    """
    with TaskGroup(group_id) as group:
        plan = EpochlakePlanBalanceOperator(task_id="plan", epochlake_conn_id=epochlake_conn_id)
        shown = f"ti.xcom_pull(task_ids='{plan.task_id}')"
        approve = ApprovalOperator(
            task_id="approve",
            subject=f"Balance: {{{{ {shown}['moves'] }}}} moves, {{{{ {shown}['resizes'] }}}} tables resized?",
            body=f"```\n{{{{ {shown}['text'] }}}}\n```",
            assigned_users=assigned_users,
            notifiers=list(notifiers),
            response_timeout=response_timeout,
        )
        apply = EpochlakeBalanceOperator(
            task_id="apply",
            epochlake_conn_id=epochlake_conn_id,
            epoch=f"{{{{ {shown}['epoch'] }}}}",
            reason="approved in Airflow, run {{ run_id }}",
            patience=patience,
        )
        verify = EpochlakeVerifyOperator(task_id="verify", epochlake_conn_id=epochlake_conn_id)
        plan >> approve >> apply >> verify
    return group


def planned(cluster: TaskCluster) -> tuple[BalancePlan, ResizePlan]:
    """What would be moved, and split or merged, at the newest epoch."""
    from epochlake.jobs.views.balancing import plan_balance
    from epochlake.jobs.views.resizing import plan_resize
    from epochlake.metastore.planning.streams import StreamLimits

    metadata, settings = cluster.catch_up(), cluster.configuration
    moving = plan_balance(cluster.storage, metadata, StreamLimits.of(settings.coordinator))
    return moving, plan_resize(cluster.storage, metadata, settings.tablets)
