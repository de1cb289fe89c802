"""The features that this version supports: what a log may hold only once every member understands it.

A feature is enabled in the log, once and for ever (seed 000, "Join procedure"). An event that belongs to one is refused
until then, so a cluster of two releases writes nothing that the older one could not read. A version that lacks
an enabled feature stops at the entry that enables it, with one line. The table only grows.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from epochlake.placement.version import PRODUCT_VERSION


class Feature(msgspec.Struct, frozen=True):
    """`name` is what the log keeps, `meaning` is for people, `since` the generation of the product that brought it."""

    name: str
    meaning: str
    since: int


ANNOUNCEMENTS = "announcements"
REPLICA_COUNTS = "replica-counts"
TABLET_PINS = "tablet-pins"
FORGOTTEN_REQUESTS = "forgotten-requests"
UPGRADES = "upgrades"
TABLET_REPLICATION = "tablet-replication"
INITIAL_CHECKS = "initial-checks"
KEYSPACE_NAMES = "keyspace-names"
TIME_TO_LIVE = "time-to-live"
STRUCT_FIELDS = "struct-fields"
GENERATED_COLUMNS = "generated-columns"
TABLET_DATACENTERS = "tablet-datacenters"
UNREGISTERED_NODES = "unregistered-nodes"
CHANGE_GENERATIONS = "change-generations"
DERIVED_TOKENS = "derived-tokens"

FEATURES = (
    Feature(ANNOUNCEMENTS, "agents say in the log which version of the product runs on their node", 7),
    Feature(REPLICA_COUNTS, "single tablets have more or fewer replicas than their keyspace asks for", 7),
    Feature(TABLET_PINS, "the balancer leaves tablets alone that are pinned", 7),
    Feature(FORGOTTEN_REQUESTS, "topology requests that are done leave the metadata", 7),
    Feature(UPGRADES, "a cluster that is described outside is taken over", 7),
    Feature(TABLET_REPLICATION, "the replication of keyspaces on tablets is altered", 7),
    Feature(INITIAL_CHECKS, "tables are created with checks", 7),
    Feature(KEYSPACE_NAMES, "keyspaces get other names", 7),
    Feature(TIME_TO_LIVE, "rows of tables expire by a column with their time", 7),
    Feature(STRUCT_FIELDS, "fields of structs within columns are altered", 7),
    Feature(GENERATED_COLUMNS, "columns are computed of others of the same row", 7),
    Feature(TABLET_DATACENTERS, "keyspaces on tablets get and give up datacenters", 7),
    Feature(UNREGISTERED_NODES, "nodes that have left are taken out of the metadata", 7),
    Feature(CHANGE_GENERATIONS, "changes of tables are divided into generations of streams", 7),
    Feature(DERIVED_TOKENS, "compacted files leave out the tokens that follow from their keys", 7),
)

SUPPORTED = tuple(feature.name for feature in FEATURES)
"""What this version announces."""


def unsupported(names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that this version does not support, in their order."""
    return tuple(name for name in names if name not in SUPPORTED)


def require_supported(names: Iterable[str]) -> None:
    """Raise ValueError where the cluster uses a feature that this version does not support."""
    lacking = unsupported(names)
    if lacking:
        raise ValueError(
            f"the cluster uses {', '.join(lacking)}, which version {PRODUCT_VERSION} does not support: use a newer one"
        )


def lacks(needed: Iterable[str], has: Iterable[str]) -> tuple[str, ...]:
    """What of `needed` is not in `has`, sorted."""
    return tuple(sorted(set(needed) - set(has)))
