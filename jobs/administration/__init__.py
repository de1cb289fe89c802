"""What operators do to a cluster: one plain function for each change, for notebooks, jobs and programs.

Each commits a change, an object of the module that it is in; the command line previews and commits the same objects.
Each takes `Options` beside its own arguments, and may raise what a commit raises: Rejected, CommitTimeout,
CommitUnknown, CoordinationUnavailable, StorageUnavailable, LogUnreadable. Docstrings name what comes in addition.
"""

from epochlake.jobs.administration.altering import alter_table
from epochlake.jobs.administration.change_streams import drop_changes, keep_changes
from epochlake.jobs.administration.checks import validate_checks
from epochlake.jobs.administration.dropped import drop_table, keep_history, restore_table
from epochlake.jobs.administration.features import enable_features
from epochlake.jobs.administration.nodes import add_node, replace_node
from epochlake.jobs.administration.operators import alter_node, set_maintenance
from epochlake.jobs.administration.schema import create_keyspace, create_table, drop_keyspace, rename_keyspace
from epochlake.jobs.administration.switches import (
    pause_balancing,
    pause_changes,
    resume_balancing,
    resume_changes,
    take_snapshot,
)
from epochlake.jobs.administration.tablet_moves import move_tablets
from epochlake.jobs.administration.tablet_pins import pin_tablets, unpin_tablets
from epochlake.jobs.administration.tablet_replicas import add_replicas, drop_replicas
from epochlake.jobs.administration.times_to_live import drop_ttl, set_ttl
from epochlake.jobs.administration.topology_changes import (
    cancel_request,
    change_replication,
    check_and_repair_cdc_streams,
    decommission,
    move_node,
    pause_request,
    rebuild_node,
    remove_node,
    resume_request,
)
from epochlake.jobs.administration.unregistering import unregister_nodes
from epochlake.jobs.administration.unused_files import sweep
from epochlake.jobs.administration.upgrading import advance_upgrade, describe_cluster

__all__ = [
    "add_node",
    "add_replicas",
    "advance_upgrade",
    "alter_node",
    "alter_table",
    "cancel_request",
    "change_replication",
    "check_and_repair_cdc_streams",
    "create_keyspace",
    "create_table",
    "decommission",
    "describe_cluster",
    "drop_changes",
    "drop_keyspace",
    "drop_replicas",
    "drop_table",
    "drop_ttl",
    "enable_features",
    "keep_changes",
    "keep_history",
    "move_node",
    "move_tablets",
    "pause_balancing",
    "pause_changes",
    "pause_request",
    "pin_tablets",
    "rebuild_node",
    "remove_node",
    "rename_keyspace",
    "replace_node",
    "restore_table",
    "resume_balancing",
    "resume_changes",
    "resume_request",
    "set_maintenance",
    "set_ttl",
    "sweep",
    "take_snapshot",
    "unpin_tablets",
    "unregister_nodes",
    "validate_checks",
]
