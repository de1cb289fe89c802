# %% [markdown]
# # The history of a cluster, and how to travel in it
#
# Every change of an Epochlake cluster is one **epoch** in an append-only log. This tour begins a small cluster in a
# temporary directory, changes it while rows are being written, and then looks back at all of it with DataFrames.
#
# It needs this project and Java 17 or 21. It is plain Python with cell marks: open it as a notebook in Jupyter (with
# jupytext) or VS Code, or run the file. Each claim is followed by an `assert`.

# %%
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise
from pathlib import Path

import epochlake
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.jobs.views.tablet_sizes import tablet_sizes
from epochlake.metastore.following.quorums import verify_quorums
from epochlake.metastore.following.verification import verify
from epochlake.placement.dataframes.balancing import balance
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

# %% [markdown]
# A Spark session that is there already is used as it is; without one, a local one is started.

# %%
session_that_was_there = SparkSession.getActiveSession()
spark = session_that_was_there or epochlake.session("epochlake-tour")

# %% [markdown]
# ## A small cluster
#
# The default configuration brings its own ZooKeeper; only the root, where the log is kept, has to be named. With
# executors on other machines, take a directory that all of them see.

# %%
directory = tempfile.TemporaryDirectory(prefix="epochlake-tour-", ignore_cleanup_errors=True)
home = Path(directory.name)
configuration = epochlake.Configuration(root=str(home / "root"))
epochlake.init_cluster(configuration, "tour", reason="to look around")
cluster = epochlake.open_cluster(configuration)

# %% [markdown]
# A node is a place where replicas are stored; here it has one volume, a directory of 1 GB. Adding one is a request in
# the log, and the coordinator carries it out.


# %%
def add_node(name: str, rack: str, reason: str) -> None:
    epochlake.add_node(cluster, name, "dc1", rack, [("d1", str(home / name), 10**9)], reason=reason)


for name, rack in {"n1": "r1", "n2": "r2", "n3": "r3"}.items():
    add_node(name, rack, "the first nodes")
report = epochlake.Coordinator(cluster).run(until_idle=True)
assert report.idle
assert report.requests_finished == 3

# %% [markdown]
# A table of a keyspace with tablets is cut into 2^k equal ranges of tokens, and each is placed by itself: three
# replicas of four tablets are three directories on three nodes.

# %%
epochlake.create_keyspace(cluster, "shop", {"dc1": 3})
columns = [("id", "bigint", False), ("note", "string", True)]
epochlake.create_table(cluster, "shop.orders", columns, ["id"], tablets=4, reason="a table to watch")
before_changes = cluster.catch_up().epoch

# %% [markdown]
# Jobs write and read through a **pipeline**, which is gated on the committed epoch. A write that returns has reached
# its consistency level in every tablet.

# %%
ROWS = 1_000


def orders(batch: int) -> DataFrame:
    ids = spark.range(batch * ROWS, (batch + 1) * ROWS)
    return ids.withColumn("note", F.concat(F.lit(f"batch {batch}, order "), "id"))


with cluster.pipeline("tour-load", spark) as pipeline:
    written = pipeline.write(orders(0), "shop.orders", consistency="QUORUM")
    read = pipeline.read("shop.orders", consistency="QUORUM").count()
assert (written.rows, written.tablets, read) == (ROWS, 4, ROWS)

# %% [markdown]
# ## The cluster changes under the writers
#
# `n4` joins, with the coordinator in a thread of its own, while batch after batch is written. Nobody waits for
# anybody.

# %%
add_node("n4", "r1", "more room")
writes = [written]
with ThreadPoolExecutor(1) as background:
    joining = background.submit(epochlake.Coordinator(cluster).run, until_idle=True)
    while not joining.done() or len(writes) < 3:
        with cluster.pipeline("tour-load", spark) as pipeline:
            writes.append(pipeline.write(orders(len(writes)), "shop.orders"))
assert joining.result().tablets_moved > 0
n4_joined = cluster.catch_up().epoch
print("tablets moved:", joining.result().tablets_moved, " writes were judged at the epochs", [w.epoch for w in writes])

# %% [markdown]
# Now `n1` leaves, and this pipeline knows nothing of it: it was opened at an epoch at which `n1` still held replicas.
# Replicas accept nothing that was planned then, so it catches up, plans again, and reports the epoch at which its
# rows are safe.

# %%
with cluster.pipeline("tour-late", spark) as pipeline:
    planned_at = pipeline.epoch
    epochlake.decommission(cluster, "n1", reason="old disks")
    assert epochlake.Coordinator(cluster).run(until_idle=True).idle
    late = pipeline.write(orders(len(writes)), "shop.orders")
    writes.append(late)
n1_left = cluster.catch_up().epoch
assert planned_at == n4_joined < n1_left == late.epoch
print(f"opened at epoch {planned_at}, acknowledged at epoch {late.epoch}")

# %% [markdown]
# Every row that was acknowledged is there, once.

# %%
with cluster.pipeline("tour-check", spark) as pipeline:
    rows = pipeline.read("shop.orders", consistency="ALL")
    found = rows.agg(F.count("id"), F.countDistinct("id"), F.max("id")).first()
assert tuple(found) == (len(writes) * ROWS, len(writes) * ROWS, len(writes) * ROWS - 1)

# %% [markdown]
# ## The history
#
# `MetadataFrames` has every part of the metadata as a DataFrame. The history is one of them: what changed, when, who
# did it and why.

# %%
frames = epochlake.MetadataFrames(spark, cluster)
frames.history.select("epoch", "event", "summary", "reason", "committed_at").show(100, truncate=60)

# %% [markdown]
# It is the log's own Delta table, so anything that reads Delta can do the same. Epochs have no gaps, and each entry
# names the hash of the one before it.

# %%
log = spark.read.format("delta").load(cluster.root.log)
entries = log.select("epoch", "event", "previous_hash", "hash").sort("epoch").collect()
assert [entry.epoch for entry in entries] == list(range(1, n1_left + 1))
assert all(entry.previous_hash == before.hash for before, entry in pairwise(entries))

# %% [markdown]
# ## The cluster as it was
#
# `at(epoch)` gives the same frames as of any epoch: the newest snapshot before it, and the entries after that.

# %%
frames.at(before_changes).nodes.select("node", "rack", "state", "epoch").show()
frames.at(n1_left).nodes.select("node", "rack", "state", "epoch").show()
assert {row.node: row.state for row in frames.at(n1_left).nodes.collect()} == {
    "n1": "left",
    "n2": "normal",
    "n3": "normal",
    "n4": "normal",
}

# %% [markdown]
# Two epochs compared: a row for each field that differs. All four tablets have left `n1`.

# %%
changes = frames.diff(before_changes, n1_left)
changes.where("component in ('node', 'tablet')").show(truncate=50)
assert changes.where("component = 'tablet' and field = 'replicas' and after not like '%n1/%'").count() == 4

# %% [markdown]
# Where rows are read, at any epoch. Reads move from node to node tablet by tablet, and at each epoch every tablet has
# its three replicas.

# %%
epochs = [*range(before_changes, n1_left, 5), n1_left]
readers = reduce(
    DataFrame.unionAll,
    [frames.at(epoch).read_placements.select(F.lit(epoch).alias("epoch"), "tablet", "node") for epoch in epochs],
)
readers.groupBy("epoch").pivot("node", ["n1", "n2", "n3", "n4"]).count().na.fill(0).sort("epoch").show()
assert readers.groupBy("epoch", "tablet").count().where("count != 3").isEmpty()
assert frames.at(n1_left).read_placements.where("node = 'n1'").isEmpty()

# %% [markdown]
# While a tablet moves, writes go to the old and to the new replicas. This is the epoch after the first moves began,
# when `n4` got writes and no reads.

# %%
began = next(entry.epoch for entry in entries if entry.event == "StartTransitions")
during = frames.at(began + 1)
during.transitions.select("tablet", "kind", "stage", "replicas", "new_replicas", "reason").show(truncate=False)
during.write_placements.select("tablet", "node", "write_set").sort("tablet", "node").show()
assert {row.node for row in during.write_placements.where("write_set = 'new'").collect()} == {"n4"}
assert during.read_placements.where("node = 'n4'").isEmpty()

# %% [markdown]
# ## What would the balancer do?
#
# Balancing is paused and an empty node joins, so there is something to plan.

# %%
epochlake.pause_balancing(cluster, reason="to look at the plan first")
add_node("n5", "r2", "even more room")
assert epochlake.Coordinator(cluster).run(until_idle=True).tablets_moved == 0
paused = frames.now()

# %% [markdown]
# The balancer is a function from DataFrames to a DataFrame. The sizes are measured by a Spark job, every move comes
# with its reason, and nothing is changed.


# %%
def plan_of(at: epochlake.MetadataFrames) -> DataFrame:
    normal = F.col("state") == "normal"
    sizes = tablet_sizes(spark, cluster.storage, at.metadata)
    return balance(at.nodes.where(normal), at.volumes.where(normal), at.tablets, sizes)


plan = plan_of(paused)
plan.select("wave", "tablet", "kind", "source_volume", "target_volume", "bytes", "reason").show(truncate=False)
moves = plan.where("kind = 'migration'").join(paused.volumes, F.expr("volume_id = target_volume"))
assert {row.node for row in moves.collect()} == {"n5"}
assert cluster.catch_up().epoch == paused.epoch

# %% [markdown]
# When balancing goes on, the coordinator plans for itself and moves them. Then there is nothing left to plan.

# %%
epochlake.resume_balancing(cluster)
assert epochlake.Coordinator(cluster).run(until_idle=True).tablets_moved > 0
assert not frames.read_placements.where("node = 'n5'").isEmpty()
assert plan_of(frames.now()).where("kind = 'migration'").isEmpty()

# %% [markdown]
# ## Does all of it hold?
#
# The whole log is verified: its chain of hashes, every event on the metadata before it, and that at every epoch each
# read quorum met each write quorum.

# %%
report = verify(cluster.log(), cluster.snapshots)
assert report.holds, report.findings
assert report.entries == report.events == cluster.catch_up().epoch
assert verify_quorums(cluster.log()) == ()
print(f"{report.entries} entries are chained, {report.events} events were applied")

# %% [markdown]
# A write that reached its level may have missed a replica, for instance one whose tablet moved at that moment. Reads
# are right all the same, and repair copies what is missing, file by file.

# %%
repaired = epochlake.repair(cluster, "shop.orders")
print(f"{repaired.ranges} tablets were compared, replicas differed in {repaired.differing}")
assert repaired.complete

# %% [markdown]
# Then the replica tables: each holds rows of its own tablets only, and all replicas of a tablet hold the same rows.
# This is known from the names and statistics of the files; no row is read.

# %%
replicas = verify_replicas(cluster.storage, cluster.catch_up(), cluster.ledger)
for stored in replicas.replicas:
    print(f"{stored.place:6} {stored.tablets} tablets, {stored.files} files, {stored.rows} rows")
assert replicas.holds, replicas.violations
assert not replicas.differing
assert sum(stored.rows for stored in replicas.replicas) == 3 * len(writes) * ROWS

# %% [markdown]
# ## The end
#
# Closing the cluster lets the embedded ZooKeeper stop. A session that was there before stays.

# %%
cluster.close()
directory.cleanup()
if session_that_was_there is None:
    spark.stop()
