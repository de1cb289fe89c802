"""The jobs as entry points of wheel tasks (Databricks), which end well by returning and badly by raising.

Such a task ignores what its function returns and takes any `sys.exit`, also of 0, for a failure. So an
exit code other than 0 becomes an exception here, and nothing ends the process.
"""

from __future__ import annotations

from collections.abc import Callable

from epochlake.jobs import compact_log as compact_log_job
from epochlake.jobs import compaction as compaction_job
from epochlake.jobs import repair as repair_job
from epochlake.jobs import run_coordinator as run_coordinator_job
from epochlake.jobs import take_snapshot as take_snapshot_job
from epochlake.jobs import vacuum_replicas as vacuum_replicas_job
from epochlake.jobs import verify_log as verify_log_job
from epochlake.placement.errors import EpochlakeError


class JobFailed(EpochlakeError):
    """A job ended with an exit code other than 0; what went wrong is on its stderr."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"the job {name} ended with exit code {code}", hint="See its error output")
        self.exit_code = code


def run_coordinator() -> None:
    _require_success("run_coordinator", run_coordinator_job.main)


def verify_log() -> None:
    _require_success("verify_log", verify_log_job.main)


def compact_log() -> None:
    _require_success("compact_log", compact_log_job.main)


def take_snapshot() -> None:
    _require_success("take_snapshot", take_snapshot_job.main)


def vacuum_replicas() -> None:
    _require_success("vacuum_replicas", vacuum_replicas_job.main)


def repair() -> None:
    _require_success("repair", repair_job.main)


def compaction() -> None:
    _require_success("compaction", compaction_job.main)


def _require_success(name: str, job: Callable[[], int]) -> None:
    code = job()
    if code != 0:
        raise JobFailed(name, code)
