"""Every kind of event. The table of them, by the name that the log keeps, is in `kinds.py`."""

from __future__ import annotations

from epochlake.metastore.metadata.events.altering import AlterColumns
from epochlake.metastore.metadata.events.barriers import RelaxBarriers, RelaxedBarrier
from epochlake.metastore.metadata.events.base import Event
from epochlake.metastore.metadata.events.change_generations import (
    CommitGenerations,
    NewGeneration,
    PublishedGeneration,
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
from epochlake.metastore.metadata.events.kinds import EVENT_KINDS, GENERATION, KINDS, EventKind
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
from epochlake.metastore.metadata.events.replica_counts import ChangeReplicas, ReplicaChange
from epochlake.metastore.metadata.events.request_lifecycle import (
    CancelRequest,
    FinishRequest,
    RequestTopology,
    StartRequest,
)
from epochlake.metastore.metadata.events.resizing import DecideResize, FinishResize
from epochlake.metastore.metadata.events.schema import CreateKeyspace, CreateTable, DropKeyspace, DropTable
from epochlake.metastore.metadata.events.tablet_replication import AlterTabletReplication, FinishTabletReplication
from epochlake.metastore.metadata.events.tablets import (
    AdvanceTransitions,
    FinishTransitions,
    NewTransition,
    StageChange,
    StartTransitions,
)
from epochlake.metastore.metadata.events.times_to_live import AlterTimeToLive
from epochlake.metastore.metadata.events.unregistering import UnregisterNodes
from epochlake.metastore.metadata.events.upgrading import AdvanceUpgrade, DescribeCluster

__all__ = [
    "EVENT_KINDS",
    "GENERATION",
    "KINDS",
    "AcceptLoss",
    "AdvanceOperation",
    "AdvanceTransitions",
    "AdvanceUpgrade",
    "AlterColumns",
    "AlterNode",
    "AlterTable",
    "AlterTabletReplication",
    "AlterTimeToLive",
    "AnnounceVersion",
    "CancelRequest",
    "ChangeReplicas",
    "CommitGenerations",
    "CreateKeyspace",
    "CreateTable",
    "DecideResize",
    "DescribeCluster",
    "DropChanges",
    "DropKeyspace",
    "DropTable",
    "EnableFeatures",
    "Event",
    "EventKind",
    "FinishRequest",
    "FinishResize",
    "FinishTabletReplication",
    "FinishTransitions",
    "ForgetRequests",
    "ForgetTable",
    "Initialise",
    "KeepChanges",
    "KeepHistory",
    "NewGeneration",
    "NewTransition",
    "PauseChanges",
    "PauseRequest",
    "PinTablets",
    "PrepareOperation",
    "PublishGenerations",
    "PublishedGeneration",
    "RegisterNode",
    "RelaxBarriers",
    "RelaxedBarrier",
    "RenameKeyspace",
    "ReplicaChange",
    "RequestReplication",
    "RequestStreamCheck",
    "RequestTopology",
    "RestoreTable",
    "ResumeChanges",
    "ResumeRequest",
    "RetreatOperation",
    "SetMaintenance",
    "ShelveTable",
    "StageChange",
    "StartRequest",
    "StartTransitions",
    "SwitchBalancing",
    "TakeSnapshot",
    "UnregisterNodes",
]
