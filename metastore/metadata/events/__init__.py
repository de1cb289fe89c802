"""Every kind of event, by the name that the log keeps. The table only grows."""

from __future__ import annotations

from epochlake.metastore.metadata.events.barriers import RelaxBarriers, RelaxedBarrier
from epochlake.metastore.metadata.events.base import Event
from epochlake.metastore.metadata.events.cluster import (
    AcceptLoss,
    Initialise,
    PauseChanges,
    ResumeChanges,
    SwitchBalancing,
    TakeSnapshot,
)
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
from epochlake.metastore.metadata.events.requests import (
    CancelRequest,
    FinishRequest,
    RequestTopology,
    StartRequest,
)
from epochlake.metastore.metadata.events.resizing import DecideResize, FinishResize
from epochlake.metastore.metadata.events.schema import CreateKeyspace, CreateTable, DropKeyspace, DropTable
from epochlake.metastore.metadata.events.tablets import (
    AdvanceTransitions,
    FinishTransitions,
    NewTransition,
    StageChange,
    StartTransitions,
)

KINDS: dict[str, type[Event]] = {
    kind.kind(): kind
    for kind in (
        Initialise,
        PauseChanges,
        ResumeChanges,
        SwitchBalancing,
        TakeSnapshot,
        RegisterNode,
        RequestTopology,
        StartRequest,
        FinishRequest,
        CancelRequest,
        CreateKeyspace,
        DropKeyspace,
        CreateTable,
        DropTable,
        StartTransitions,
        AdvanceTransitions,
        FinishTransitions,
        RequestReplication,
        PrepareOperation,
        AdvanceOperation,
        RetreatOperation,
        PauseRequest,
        ResumeRequest,
        DecideResize,
        FinishResize,
        SetMaintenance,
        AlterNode,
        AlterTable,
        AcceptLoss,
        RelaxBarriers,
    )
}

__all__ = [
    "KINDS",
    "AcceptLoss",
    "AdvanceOperation",
    "AdvanceTransitions",
    "AlterNode",
    "AlterTable",
    "CancelRequest",
    "CreateKeyspace",
    "CreateTable",
    "DecideResize",
    "DropKeyspace",
    "DropTable",
    "Event",
    "FinishRequest",
    "FinishResize",
    "FinishTransitions",
    "Initialise",
    "NewTransition",
    "PauseChanges",
    "PauseRequest",
    "PrepareOperation",
    "RegisterNode",
    "RelaxBarriers",
    "RelaxedBarrier",
    "RequestReplication",
    "RequestTopology",
    "ResumeChanges",
    "ResumeRequest",
    "RetreatOperation",
    "SetMaintenance",
    "StageChange",
    "StartRequest",
    "StartTransitions",
    "SwitchBalancing",
    "TakeSnapshot",
]
