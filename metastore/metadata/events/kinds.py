"""The kinds of events: the name that the log keeps of each, its struct, and since when it is there. It only grows.

What is in the log for ever is written down here and nowhere else. A class may be renamed or moved, and a
field may be added that has a default; a name, once written, is neither changed nor used for anything else.
"""

from __future__ import annotations

import msgspec
from epochlake.metastore.metadata.events.altering import AlterColumns
from epochlake.metastore.metadata.events.barriers import RelaxBarriers
from epochlake.metastore.metadata.events.base import Event, name_kinds
from epochlake.metastore.metadata.events.change_generations import (
    CommitGenerations,
    PublishGenerations,
    RequestStreamCheck,
)
from epochlake.metastore.metadata.events.change_streams import DropChanges, KeepChanges
from epochlake.metastore.metadata.events.cluster import (
    AcceptLoss,
    Initialise,
    PauseChanges,
    ResumeChanges,
    SwitchBalancing,
    TakeSnapshot,
)
from epochlake.metastore.metadata.events.dropped_tables import ForgetTable, KeepHistory, RestoreTable, ShelveTable
from epochlake.metastore.metadata.events.features import AnnounceVersion, EnableFeatures
from epochlake.metastore.metadata.events.forgetting import ForgetRequests
from epochlake.metastore.metadata.events.nodes import RegisterNode
from epochlake.metastore.metadata.events.operations import (
    AdvanceOperation,
    PauseRequest,
    PrepareOperation,
    RequestReplication,
    ResumeRequest,
    RetreatOperation,
)
from epochlake.metastore.metadata.events.operators import AlterNode, AlterTable, SetMaintenance
from epochlake.metastore.metadata.events.pins import PinTablets
from epochlake.metastore.metadata.events.renaming import RenameKeyspace
from epochlake.metastore.metadata.events.replica_counts import ChangeReplicas
from epochlake.metastore.metadata.events.request_lifecycle import (
    CancelRequest,
    FinishRequest,
    RequestTopology,
    StartRequest,
)
from epochlake.metastore.metadata.events.resizing import DecideResize, FinishResize
from epochlake.metastore.metadata.events.schema import CreateKeyspace, CreateTable, DropKeyspace, DropTable
from epochlake.metastore.metadata.events.tablet_replication import AlterTabletReplication, FinishTabletReplication
from epochlake.metastore.metadata.events.tablets import AdvanceTransitions, FinishTransitions, StartTransitions
from epochlake.metastore.metadata.events.times_to_live import AlterTimeToLive
from epochlake.metastore.metadata.events.unregistering import UnregisterNodes
from epochlake.metastore.metadata.events.upgrading import AdvanceUpgrade, DescribeCluster
from epochlake.metastore.metadata.features import (
    ANNOUNCEMENTS,
    CHANGE_GENERATIONS,
    FORGOTTEN_REQUESTS,
    KEYSPACE_NAMES,
    REPLICA_COUNTS,
    TABLET_PINS,
    TABLET_REPLICATION,
    TIME_TO_LIVE,
    UNREGISTERED_NODES,
    UPGRADES,
)

GENERATION = 7
"""The generation of the product that this is; a new kind of event begins with it.

A generation is a state of the product whose logs every later one reads. 1: nodes, schema and tablets. 2: the ring,
splits and merges, what operators say of nodes and tables. 3: lost storage, lost epochs and relaxed barriers. 4: frozen
formats. 5: altered columns. 6: checks of tables. 7: versions and features.
"""


class EventKind(msgspec.Struct, frozen=True):
    """A kind of event: its name in the log, the struct of its payload, the generation in which it appeared.

    `feature`: what has to be enabled before it can be committed. Every kind since generation 7 has one, but for the one
    that enables: a cluster of two releases writes nothing that the older one cannot read.
    """

    name: str
    struct: type[Event]
    since: int
    feature: str = ""


EVENT_KINDS = (
    EventKind("Initialise", Initialise, since=1),
    EventKind("PauseChanges", PauseChanges, since=1),
    EventKind("ResumeChanges", ResumeChanges, since=1),
    EventKind("SwitchBalancing", SwitchBalancing, since=1),
    EventKind("TakeSnapshot", TakeSnapshot, since=1),
    EventKind("RegisterNode", RegisterNode, since=1),
    EventKind("RequestTopology", RequestTopology, since=1),
    EventKind("StartRequest", StartRequest, since=1),
    EventKind("FinishRequest", FinishRequest, since=1),
    EventKind("CancelRequest", CancelRequest, since=1),
    EventKind("CreateKeyspace", CreateKeyspace, since=1),
    EventKind("DropKeyspace", DropKeyspace, since=1),
    EventKind("CreateTable", CreateTable, since=1),
    EventKind("DropTable", DropTable, since=1),
    EventKind("StartTransitions", StartTransitions, since=1),
    EventKind("AdvanceTransitions", AdvanceTransitions, since=1),
    EventKind("FinishTransitions", FinishTransitions, since=1),
    EventKind("RequestReplication", RequestReplication, since=2),
    EventKind("PrepareOperation", PrepareOperation, since=2),
    EventKind("AdvanceOperation", AdvanceOperation, since=2),
    EventKind("RetreatOperation", RetreatOperation, since=2),
    EventKind("PauseRequest", PauseRequest, since=2),
    EventKind("ResumeRequest", ResumeRequest, since=2),
    EventKind("DecideResize", DecideResize, since=2),
    EventKind("FinishResize", FinishResize, since=2),
    EventKind("SetMaintenance", SetMaintenance, since=2),
    EventKind("AlterNode", AlterNode, since=2),
    EventKind("AlterTable", AlterTable, since=2),
    EventKind("AcceptLoss", AcceptLoss, since=3),
    EventKind("RelaxBarriers", RelaxBarriers, since=3),
    EventKind("KeepChanges", KeepChanges, since=4),
    EventKind("DropChanges", DropChanges, since=4),
    EventKind("ShelveTable", ShelveTable, since=4),
    EventKind("RestoreTable", RestoreTable, since=4),
    EventKind("ForgetTable", ForgetTable, since=4),
    EventKind("KeepHistory", KeepHistory, since=4),
    EventKind("AlterColumns", AlterColumns, since=5),
    EventKind("EnableFeatures", EnableFeatures, since=7),
    EventKind("AnnounceVersion", AnnounceVersion, since=7, feature=ANNOUNCEMENTS),
    EventKind("ChangeReplicas", ChangeReplicas, since=7, feature=REPLICA_COUNTS),
    EventKind("PinTablets", PinTablets, since=7, feature=TABLET_PINS),
    EventKind("ForgetRequests", ForgetRequests, since=7, feature=FORGOTTEN_REQUESTS),
    EventKind("DescribeCluster", DescribeCluster, since=7, feature=UPGRADES),
    EventKind("AdvanceUpgrade", AdvanceUpgrade, since=7, feature=UPGRADES),
    EventKind("AlterTabletReplication", AlterTabletReplication, since=7, feature=TABLET_REPLICATION),
    EventKind("FinishTabletReplication", FinishTabletReplication, since=7, feature=TABLET_REPLICATION),
    EventKind("RenameKeyspace", RenameKeyspace, since=7, feature=KEYSPACE_NAMES),
    EventKind("AlterTimeToLive", AlterTimeToLive, since=7, feature=TIME_TO_LIVE),
    EventKind("UnregisterNodes", UnregisterNodes, since=7, feature=UNREGISTERED_NODES),
    EventKind("CommitGenerations", CommitGenerations, since=7, feature=CHANGE_GENERATIONS),
    EventKind("PublishGenerations", PublishGenerations, since=7, feature=CHANGE_GENERATIONS),
    EventKind("RequestStreamCheck", RequestStreamCheck, since=7, feature=CHANGE_GENERATIONS),
)

KINDS: dict[str, type[Event]] = {kind.name: kind.struct for kind in EVENT_KINDS}
"""The struct of each kind by the name that the log keeps."""

name_kinds(
    {kind.struct: kind.name for kind in EVENT_KINDS},
    {kind.struct: kind.feature for kind in EVENT_KINDS if kind.feature},
)
