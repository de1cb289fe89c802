"""An event of each kind with every field given, by the generation of the product that first wrote it in this shape.

The last one of a kind is what is written today. They are literal: nothing here is planned or allocated, so that no
better plan changes what a golden file holds. A kind that grows gets another example under the generation of now, and
keeps the one that it has: that is how older clusters hold it.
"""

from __future__ import annotations

import numpy as np
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.components.upgrade import (
    Described,
    DescribedKeyspace,
    DescribedNode,
    DescribedTable,
    UpgradeState,
)
from epochlake.metastore.metadata.events import (
    AcceptLoss,
    AdvanceOperation,
    AdvanceTransitions,
    AdvanceUpgrade,
    AlterColumns,
    AlterNode,
    AlterTable,
    AlterTabletReplication,
    AlterTimeToLive,
    AnnounceVersion,
    CancelRequest,
    ChangeReplicas,
    CommitGenerations,
    CreateKeyspace,
    CreateTable,
    DecideResize,
    DescribeCluster,
    DropChanges,
    DropKeyspace,
    DropTable,
    EnableFeatures,
    Event,
    FinishRequest,
    FinishResize,
    FinishTabletReplication,
    FinishTransitions,
    ForgetRequests,
    ForgetTable,
    Initialise,
    KeepChanges,
    KeepHistory,
    NewGeneration,
    NewTransition,
    PauseChanges,
    PauseRequest,
    PinTablets,
    PrepareOperation,
    PublishedGeneration,
    PublishGenerations,
    RegisterNode,
    RelaxBarriers,
    RelaxedBarrier,
    RenameKeyspace,
    ReplicaChange,
    RequestReplication,
    RequestStreamCheck,
    RequestTopology,
    RestoreTable,
    ResumeChanges,
    ResumeRequest,
    RetreatOperation,
    SetMaintenance,
    ShelveTable,
    StageChange,
    StartRequest,
    StartTransitions,
    SwitchBalancing,
    TakeSnapshot,
    UnregisterNodes,
)
from epochlake.metastore.metadata.model import (
    Check,
    Column,
    CompactionOptions,
    Generated,
    Keyspace,
    PlacementKind,
    RequestKind,
    StructField,
    Table,
    TabletOptions,
    TimeToLive,
    Volume,
)
from epochlake.placement.ring.codec import encode_operation
from epochlake.placement.ring.locks import Ranges
from epochlake.placement.ring.placements import NO_CHANGE, NO_TOKENS, AssignmentChange, Delta
from epochlake.placement.ring.state import Operation, OperationKind, Step
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.transitions import Kind, Stage

NTS = "NetworkTopologyStrategy"
COLUMNS = (Column("id", "bigint", nullable=False), Column("note", "array<string>"))
TWICE = Column("twice", "bigint", generated=Generated("id * 2", (1,)))
ALTERED = (
    Column("number", "bigint", nullable=False, column_id=1, stored_as="id"),
    Column("note", "string", column_id=4, stored_as="note#4", default="it's «new»", comment="what was said"),
)
FIELDED = (
    *ALTERED,
    Column(
        "home",
        "struct<road:string,zip:struct<code:bigint>>",
        column_id=5,
        stored_as="home",
        fields=(
            StructField(6, "street", comment="where"),
            StructField(7, "zip", added=True),
            StructField(8, "code"),
        ),
    ),
)
VOLUMES = (Volume(3, "d0", "/n2/d0", 1000), Volume(4, "d1", "s3://bucket/n2/d1", 2**40))
REPLICAS = np.array([[1, 2], [2, 3], [3, -1], [1, 2]], dtype=np.int32)
TWO = Replication(NTS, (("dc1", 2),))


def _changes(old: list[list[int]], new: list[list[int]]) -> AssignmentChange:
    starts, ends = np.array([-5, 7], dtype=np.int64), np.array([7, 100], dtype=np.int64)
    return AssignmentChange(starts, ends, np.array(old, dtype=np.int32), np.array(new, dtype=np.int32))


def _operation(kind: OperationKind, operation_id: str, **more: object) -> Operation:
    old, both, new = [[1, 2], [2, 3]], [[1, 2, 4], [2, 3, 4]], [[1, 4], [4, 3]]
    deltas = (
        Delta(np.array([7], dtype=np.int64), NO_CHANGE, NO_CHANGE, NO_TOKENS),
        Delta(NO_TOKENS, NO_CHANGE, _changes(old, both), NO_TOKENS),
        Delta(NO_TOKENS, _changes(old, new), NO_CHANGE, NO_TOKENS),
        Delta(NO_TOKENS, NO_CHANGE, _changes(both, new), np.array([-5], dtype=np.int64)),
    )
    locks = Ranges(np.array([-5, 7], dtype=np.int64), np.array([7, 100], dtype=np.int64))
    return Operation(operation_id, kind, 4, (-(2**63), 7), {TWO: deltas}, {TWO: locks}, **more)  # type: ignore[arg-type]


JOIN = _operation(OperationKind.JOIN, "join-n4", datacenter="dc1")
REPLICATION = _operation(
    OperationKind.CHANGE_REPLICATION,
    "fewer/1",
    keyspace="sky",
    previous=Replication(NTS, (("dc1", 3),)),
    replication=Replication(NTS, (("dc1", 2),), changing="sky"),
)

EVENTS: dict[tuple[str, int], Event] = {
    ("Initialise", 1): Initialise("main", "01930000-0000-7000-8000-000000000000", "0.1.0"),
    ("Initialise", 7): Initialise("main", "01930000-0000-7000-8000-000000000000", "0.1.0", ("announcements",)),
    ("EnableFeatures", 7): EnableFeatures(("announcements",)),
    ("AnnounceVersion", 7): AnnounceVersion(2, "0.1.0", ("announcements",)),
    ("ChangeReplicas", 7): ChangeReplicas(
        (ReplicaChange("t-1", 0, 4, None, "hot"), ReplicaChange("t-1", 1, 2, 3, "cold")),
    ),
    ("DescribeCluster", 7): DescribeCluster(
        Described(
            (DescribedNode("n1", "dc1", "r1", {"d1": "file:///disks/n1"}, (-5, 7)),),
            (DescribedKeyspace("air", {"dc1": 1}, PlacementKind.RING, "NetworkTopologyStrategy"),),
            (DescribedTable("air.flights", "/lake/flights", ("id",)),),
        )
    ),
    ("AdvanceUpgrade", 7): AdvanceUpgrade(UpgradeState.DONE, True, "it is no use"),
    ("UnregisterNodes", 7): UnregisterNodes((2, 5)),
    ("RequestStreamCheck", 7): RequestStreamCheck("check-1", "after a decommission"),
    ("CommitGenerations", 7): CommitGenerations(
        (
            NewGeneration("t-1", "s-1", 2, 17, count=8),
            NewGeneration("t-2", "s-2", 1, 0, lows=(-(2**63), -5, 7)),
        ),
        1_700_000_000_000_000,
    ),
    ("PublishGenerations", 7): PublishGenerations(
        (PublishedGeneration("t-1", "s-1", 2, 18, oldest=1), PublishedGeneration("t-2", "s-2", 1, 1))
    ),
    ("ForgetRequests", 7): ForgetRequests(("join-n1", "move-n1")),
    ("AlterTabletReplication", 7): AlterTabletReplication("air", {"dc1": 3}, "safer"),
    ("FinishTabletReplication", 7): FinishTabletReplication("air"),
    ("PinTablets", 7): PinTablets("t-1", 4, (0, 2), False, "the fast disk"),
    ("PauseChanges", 1): PauseChanges(why="an upgrade — until 7 o'clock"),
    ("ResumeChanges", 1): ResumeChanges(),
    ("SwitchBalancing", 1): SwitchBalancing(on=False, why="a busy night"),
    ("TakeSnapshot", 1): TakeSnapshot(),
    ("TakeSnapshot", 3): TakeSnapshot("1:0123456789abcdef"),
    ("RegisterNode", 1): RegisterNode("join-n2", 2, "n2", "host-2", "dc1", "r2", VOLUMES, 1),
    ("RegisterNode", 2): RegisterNode("join-n2", 2, "n2", "host-2", "dc1", "r2", VOLUMES, 1, tokens=(-(2**63), 7)),
    ("RegisterNode", 3): RegisterNode(
        "join-n2",
        2,
        "n2",
        "host-2",
        "dc1",
        "r2",
        VOLUMES,
        1,
        tokens=(-(2**63), 7),
        force=True,
        takes_back=("leave-n1",),
        declares_lost=True,
    ),
    ("RequestTopology", 1): RequestTopology("leave-n1", RequestKind.LEAVE, 1, "old"),
    ("RequestTopology", 2): RequestTopology(
        "move-n1", RequestKind.MOVE, 1, "old", tokens=(5, 2**62), source_datacenter="dc2", force=True
    ),
    ("RequestTopology", 3): RequestTopology(
        "remove-n1",
        RequestKind.REMOVE,
        1,
        "a fire",
        tokens=(5,),
        source_datacenter="dc2",
        force=True,
        takes_back=("move-n1",),
        takes_over="leave-n1",
        declares_lost=True,
    ),
    ("StartRequest", 1): StartRequest("join-n2"),
    ("StartRequest", 2): StartRequest("join-n4", encode_operation(JOIN)),
    ("FinishRequest", 1): FinishRequest("join-n2"),
    ("CancelRequest", 1): CancelRequest("join-n2", "a mistake"),
    ("CreateKeyspace", 1): CreateKeyspace(Keyspace("air", PlacementKind.TABLETS, NTS, {"dc2": 1, "dc1": 3})),
    ("CreateKeyspace", 2): CreateKeyspace(
        Keyspace("sky", PlacementKind.RING, "SimpleStrategy", {"replication_factor": 2})
    ),
    ("CreateKeyspace", 4): CreateKeyspace(
        Keyspace("sky", PlacementKind.RING, NTS, {"dc1": 2}), encode_replicas(REPLICAS)
    ),
    ("DropKeyspace", 1): DropKeyspace("air"),
    ("RenameKeyspace", 7): RenameKeyspace("air", "heavens"),
    ("CreateTable", 1): CreateTable(
        Table("t-1", "air", "flights", COLUMNS, ("id",), append_only=True), 4, encode_replicas(REPLICAS)
    ),
    ("CreateTable", 2): CreateTable(
        Table("t-2", "sky", "stars", COLUMNS, ("id",), options=TabletOptions(2**30, 2, 64, ("ssd",), ("t-1",))), 0
    ),
    ("CreateTable", 7): CreateTable(
        Table("t-3", "air", "landings", (*COLUMNS, TWICE), ("id",), append_only=True), 4, encode_replicas(REPLICAS)
    ),
    ("DropTable", 1): DropTable("t-1", "air.flights"),
    ("ShelveTable", 4): ShelveTable("t-1", "air.flights", 86_400.0),
    ("RestoreTable", 4): RestoreTable("t-1", "flights_again"),
    ("ForgetTable", 4): ForgetTable("t-1", "air.flights"),
    ("AlterTimeToLive", 7): AlterTimeToLive(
        "t-1", "air.flights", "00000006-0000-7000-8000-000000000000", TimeToLive(2, 86_400, 1_700_000_000_000_000)
    ),
    ("KeepHistory", 4): KeepHistory("t-1", "air.flights", 604_800.0),
    ("StartTransitions", 1): StartTransitions(
        (
            NewTransition("t-1", 0, Kind.MIGRATION, 1, 4, "to spread"),
            NewTransition("t-1", 1, Kind.REBUILD, 2, 4),
            NewTransition("t-1", 2, Kind.INTRANODE_MIGRATION, 3, 4),
        )
    ),
    ("AdvanceTransitions", 1): AdvanceTransitions(
        (
            StageChange("t-1", 0, Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, "session-1", None),
            StageChange("t-1", 1, Stage.STREAMING, Stage.CLEANUP_TARGET, None, "the disk is full"),
            StageChange("t-1", 2, Stage.WRITE_BOTH_READ_NEW, Stage.USE_NEW, None, None),
        )
    ),
    ("FinishTransitions", 1): FinishTransitions((("t-1", 0), ("t-1", 3))),
    ("RequestReplication", 2): RequestReplication("fewer", "sky", NTS, {"dc2": 0, "dc1": 2}, True, "to save space"),
    ("PrepareOperation", 2): PrepareOperation("fewer", encode_operation(REPLICATION)),
    ("AdvanceOperation", 2): AdvanceOperation("join-n4", Step.START, "session-2"),
    ("RetreatOperation", 2): RetreatOperation("join-n4", Step.MID),
    ("PauseRequest", 2): PauseRequest("join-n4", "until tomorrow"),
    ("ResumeRequest", 2): ResumeRequest("join-n4"),
    ("DecideResize", 2): DecideResize("t-1", Resize.SPLIT, 3, "the tablets are large"),
    ("FinishResize", 2): FinishResize("t-1", 3),
    ("SetMaintenance", 2): SetMaintenance(1, True, "a new fan"),
    ("AlterNode", 2): AlterNode(1, 0.5, ("ssd", "hot")),
    ("AlterTable", 2): AlterTable("t-1", "air.flights", TabletOptions(2**30, 2, 64, ("ssd",), ("t-2",))),
    ("AlterColumns", 5): AlterColumns("t-1", "air.flights", "00000006-0000-7000-8000-000000000000", ALTERED),
    ("AlterColumns", 6): AlterColumns(
        "t-1",
        "air.flights",
        "00000006-0000-7000-8000-000000000000",
        ALTERED,
        (Check("named", "note is not null", (2,), 5, 6), Check("paid", "number >= 0 and note <> 'x'", (1, 2))),
    ),
    ("AlterColumns", 7): AlterColumns(
        "t-1",
        "air.flights",
        "00000006-0000-7000-8000-000000000000",
        FIELDED,
        (Check("named", "note is not null", (2,), 5, 6), Check("paid", "number >= 0 and note <> 'x'", (1, 2))),
    ),
    ("AlterTable", 4): AlterTable(
        "t-1",
        "air.flights",
        TabletOptions(2**30, 2, 64, ("ssd",), ("t-2",)),
        CompactionOptions(True, "22:00-06:00", 3600.0),
    ),
    ("AcceptLoss", 3): AcceptLoss(2, 17, "0" * 64, "the copy of n1"),
    ("RelaxBarriers", 3): RelaxBarriers(
        (RelaxedBarrier("tablet 0 of t-1, streaming", "ALL", "QUORUM", "volume 3: it does not answer"),)
    ),
    ("KeepChanges", 4): KeepChanges("t-1", "air.flights", "s-1", 3600.0, 86400.5),
    ("DropChanges", 4): DropChanges("t-1", "air.flights"),
}
"""An event for each pair of a kind and a generation."""
