"""Epochlake: transactional cluster metadata and data placement for Spark and Delta Lake.

The names in `__all__` are the public API. docs/api.md groups them and says what they promise. All other names are
internal and may change in every release.

    import epochlake

    with epochlake.open_cluster() as cluster, cluster.pipeline("nightly-load", spark) as pipeline:
        pipeline.write(rows, "air.flights", consistency="QUORUM")
        flights = pipeline.read("air.flights", consistency="QUORUM")

Nothing lives here: each name is imported from its home when it is first used. So `import epochlake` is cheap, and
imports neither Spark nor Arrow nor ZooKeeper's client. An error that is raised on the way is an `EpochlakeError`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING

from epochlake.placement.version import PRODUCT_VERSION as __version__

# Read by type checkers and editors, and by tests: `_HOMES` says the same to Python.
if TYPE_CHECKING:
    from epochlake.jobs.administration import (
        add_node,
        alter_node,
        alter_table,
        create_keyspace,
        create_table,
        decommission,
        drop_changes,
        drop_keyspace,
        drop_table,
        drop_ttl,
        keep_changes,
        keep_history,
        pause_balancing,
        remove_node,
        rename_keyspace,
        replace_node,
        restore_table,
        resume_balancing,
        set_ttl,
        unregister_nodes,
        validate_checks,
    )
    from epochlake.jobs.administration.past_rows import rollback
    from epochlake.jobs.cluster import Cluster, init_cluster, open_cluster
    from epochlake.jobs.coordinator.coordinator import Coordinator
    from epochlake.jobs.datasource.attaching import attach
    from epochlake.jobs.datasource.registering import register
    from epochlake.jobs.gate.errors import (
        ConsistencyNotReached,
        HistoryNotKept,
        MergeContended,
        MergeUnfinished,
        ReadDisturbed,
        RowsUnreadable,
    )
    from epochlake.jobs.gate.pipeline import Pipeline
    from epochlake.jobs.replicas.change_index import ChangesGone
    from epochlake.jobs.spark_session import session
    from epochlake.jobs.upkeep.compaction import compact
    from epochlake.jobs.upkeep.repair import repair
    from epochlake.metastore.configuration import Configuration
    from epochlake.metastore.errors import (
        CommitTimeout,
        CommitUnknown,
        CoordinationUnavailable,
        NotInitialised,
        Rejected,
        StorageUnavailable,
    )
    from epochlake.metastore.metadata.model import PlacementKind
    from epochlake.metastore.tables.dataframes import MetadataFrames
    from epochlake.placement.consistency import ConsistencyLevel
    from epochlake.placement.errors import EpochlakeError, InvalidRequest

__all__ = [
    "ChangesGone",
    "Cluster",
    "CommitTimeout",
    "CommitUnknown",
    "Configuration",
    "ConsistencyLevel",
    "ConsistencyNotReached",
    "CoordinationUnavailable",
    "Coordinator",
    "EpochlakeError",
    "HistoryNotKept",
    "InvalidRequest",
    "MergeContended",
    "MergeUnfinished",
    "MetadataFrames",
    "NotInitialised",
    "Pipeline",
    "PlacementKind",
    "ReadDisturbed",
    "Rejected",
    "RowsUnreadable",
    "StorageUnavailable",
    "__version__",
    "add_node",
    "alter_node",
    "alter_table",
    "attach",
    "compact",
    "create_keyspace",
    "create_table",
    "decommission",
    "drop_changes",
    "drop_keyspace",
    "drop_table",
    "drop_ttl",
    "init_cluster",
    "keep_changes",
    "keep_history",
    "open_cluster",
    "pause_balancing",
    "register",
    "remove_node",
    "rename_keyspace",
    "repair",
    "replace_node",
    "restore_table",
    "resume_balancing",
    "rollback",
    "session",
    "set_ttl",
    "unregister_nodes",
    "validate_checks",
]

_HOMES = {
    "ChangesGone": "jobs.replicas.change_index",
    "Cluster": "jobs.cluster",
    "CommitTimeout": "metastore.errors",
    "CommitUnknown": "metastore.errors",
    "Configuration": "metastore.configuration",
    "ConsistencyLevel": "placement.consistency",
    "ConsistencyNotReached": "jobs.gate.errors",
    "CoordinationUnavailable": "metastore.errors",
    "Coordinator": "jobs.coordinator.coordinator",
    "EpochlakeError": "placement.errors",
    "HistoryNotKept": "jobs.gate.errors",
    "InvalidRequest": "placement.errors",
    "MergeContended": "jobs.gate.errors",
    "MergeUnfinished": "jobs.gate.errors",
    "MetadataFrames": "metastore.tables.dataframes",
    "NotInitialised": "metastore.errors",
    "Pipeline": "jobs.gate.pipeline",
    "PlacementKind": "metastore.metadata.model",
    "ReadDisturbed": "jobs.gate.errors",
    "Rejected": "metastore.errors",
    "RowsUnreadable": "jobs.gate.errors",
    "StorageUnavailable": "metastore.errors",
    "add_node": "jobs.administration",
    "alter_node": "jobs.administration",
    "alter_table": "jobs.administration",
    "attach": "jobs.datasource.attaching",
    "compact": "jobs.upkeep.compaction",
    "create_keyspace": "jobs.administration",
    "create_table": "jobs.administration",
    "decommission": "jobs.administration",
    "drop_changes": "jobs.administration",
    "drop_keyspace": "jobs.administration",
    "drop_table": "jobs.administration",
    "drop_ttl": "jobs.administration",
    "init_cluster": "jobs.cluster",
    "keep_changes": "jobs.administration",
    "keep_history": "jobs.administration",
    "open_cluster": "jobs.cluster",
    "pause_balancing": "jobs.administration",
    "register": "jobs.datasource.registering",
    "remove_node": "jobs.administration",
    "rename_keyspace": "jobs.administration",
    "repair": "jobs.upkeep.repair",
    "replace_node": "jobs.administration",
    "restore_table": "jobs.administration",
    "resume_balancing": "jobs.administration",
    "rollback": "jobs.administration.past_rows",
    "session": "jobs.spark_session",
    "set_ttl": "jobs.administration",
    "unregister_nodes": "jobs.administration",
    "validate_checks": "jobs.administration",
}

_DEPRECATED: dict[str, tuple[str, str]] = {}
"""An old name, with its new name and the release that drops the old one."""

# Hidden from type checkers: they would accept every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _DEPRECATED:
            successor, release = _DEPRECATED[name]
            message = f"epochlake.{name} is now epochlake.{successor}; release {release} drops the old name"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[__name__], successor)
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        try:
            value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
                raise
            message = (
                f"epochlake.{name} needs PySpark, which is not installed here: run `pip install 'epochlake[spark]'`, "
                "or run where a Spark is (spark-submit, a notebook of a platform)"
            )
            raise ImportError(message, name=error.name) from error
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
