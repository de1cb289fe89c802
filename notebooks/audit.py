# %% [markdown]
# # An audit
#
# Who changed what, and why? What did the cluster look like on a day? What has changed since? Can the answers be
# trusted? The log answers all of it: it is append-only, each entry names the hash of the one before, and every state
# can be had again.
#
# It needs this project and Java 17 or 21. It is plain Python with cell marks: open it as a notebook in Jupyter (with
# jupytext) or VS Code, or run the file. Each claim is followed by an `assert`.

# %%
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import epochlake
import msgspec
from epochlake import pictures
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.following.quorums import verify_quorums
from epochlake.metastore.following.verification import verify
from epochlake.metastore.log.in_memory import InMemoryLog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

# %% [markdown]
# ## A cluster with a past
#
# In a real audit this part is `epochlake.open_cluster()`. Here some things happen first: a cluster begins, people pause
# something and let it go on, and a node leaves.

# %%
directory = tempfile.TemporaryDirectory(prefix="epochlake-tour-", ignore_cleanup_errors=True)
home = Path(directory.name)
configuration = epochlake.Configuration(root=str(home / "root"))
epochlake.init_cluster(configuration, "tour", reason="CHG-1: a new cluster")
cluster = epochlake.open_cluster(configuration)
for name, rack in {"n1": "r1", "n2": "r2", "n3": "r3", "n4": "r1"}.items():
    epochlake.add_node(cluster, name, "dc1", rack, [("d1", str(home / name), 10**9)], reason="CHG-1: a new cluster")
coordinator = epochlake.Coordinator(cluster)
assert coordinator.run(until_idle=True).idle
epochlake.create_keyspace(cluster, "shop", {"dc1": 3}, reason="CHG-2: the shop moves in")
columns = [("id", "bigint", False), ("note", "string", True)]
epochlake.create_table(cluster, "shop.orders", columns, ["id"], tablets=4, reason="CHG-2: the shop moves in")
cluster.write("shop.orders", [{"id": number, "note": "an order"} for number in range(500)])
time.sleep(0.01)
on_that_day = datetime.now(UTC)
time.sleep(0.01)
epochlake.pause_balancing(cluster, reason="INC-7: disks are slow")
epochlake.decommission(cluster, "n1", reason="CHG-3: old disks")
assert coordinator.run(until_idle=True).idle
epochlake.resume_balancing(cluster, reason="INC-7: it was the switch")
now = cluster.catch_up().epoch

# %% [markdown]
# ## Who changed what
#
# The history is a DataFrame, so any question is one query. What people asked for has a reason; what follows from it is
# done by a coordinator, an epoch a step.

# %%
session_that_was_there = SparkSession.getActiveSession()
spark = session_that_was_there or epochlake.session("epochlake-tour")
frames = epochlake.MetadataFrames(spark, cluster)
history = frames.history
asked = history.where("reason != ''").select("epoch", "committed_at", "author", "summary", "reason").sort("epoch")
asked.show(50, truncate=48)
tickets = {
    row.ticket: row.epochs
    for row in asked.groupBy(F.regexp_extract("reason", r"^([A-Z]+-\d+)", 1).alias("ticket"))
    .agg(F.count("*").alias("epochs"))
    .where("ticket != ''")
    .collect()
}
assert tickets.keys() == {"CHG-1", "CHG-2", "CHG-3", "INC-7"}
assert tickets["INC-7"] == 2
assert history.where("author = ''").isEmpty()

# %% [markdown]
# The same as a picture, each epoch with the same room: requests as bars, what people did besides as points.

# %%
timeline = pictures.timeline(cluster, by="epoch")
assert any("INC-7" in text for trace in timeline.data for text in trace.text)
timeline

# %% [markdown]
# ## The cluster on a day
#
# Which epoch was the newest at that time? Then everything that can be asked now can be asked as of then.

# %%
then = history.where(F.col("committed_at") <= F.lit(on_that_day)).agg(F.max("epoch")).first()[0]
assert then is not None
assert then < now
print(f"at {on_that_day:%H:%M:%S.%f} the newest epoch was {then}")
nodes_then = {row.node: row.state for row in frames.at(then).nodes.collect()}
assert nodes_then == dict.fromkeys(["n1", "n2", "n3", "n4"], "normal")
cluster.nodes(at=then)

# %% [markdown]
# Where was a row then, and where is it now?


# %%
def readers(epoch: int) -> set[str]:
    placed = frames.at(epoch).read_placements.where("table = 'orders' and tablet = 0")
    return {row.node for row in placed.collect()}


print("tablet 0 was read from", sorted(readers(then)), "and is read from", sorted(readers(now)))
assert "n1" not in readers(now)
assert len(readers(then)) == len(readers(now)) == 3

# %% [markdown]
# ## What has changed since
#
# Two states compared, a row for each field; values are JSON.

# %%
changes = frames.diff(then, now)
changes.where("component in ('node', 'switches', 'tablet')").show(30, truncate=44)
assert {(row.before, row.after) for row in changes.where("component = 'node' and field = 'state'").collect()} == {
    ('"normal"', '"left"')
}
cluster.diff(then)

# %% [markdown]
# ## Can it be trusted?
#
# The whole log is verified: that each entry is what its hash says and continues the one before, that each event was
# allowed on the state before it, that snapshots are what a replay gives, and that at every epoch each read quorum met
# each write quorum, also across neighbouring epochs.

# %%
report = verify(cluster.log(), cluster.snapshots)
assert report.holds, report.findings
assert report.entries == now
assert verify_quorums(cluster.log()) == ()
report

# %% [markdown]
# And if somebody had changed the past? Here is a copy of the log in which one reason was improved afterwards, and
# another one without an epoch that somebody would like to forget.

# %%
entries = list(cluster.log().read(0))
improved = [
    msgspec.structs.replace(entry, reason="nothing happened") if entry.reason.startswith("INC-7: disks") else entry
    for entry in entries
]
forgotten = [entry for entry in entries if not entry.reason.startswith("INC-7: disks")]
for forged in (improved, forgotten):
    copy = InMemoryLog()
    copy.read(0)
    copy.append(forged)
    found = verify(copy, None)
    assert not found.holds
    print(found.findings[0].message)

# %% [markdown]
# The replicas are verified against the metadata: each holds rows of its own tablets only, and all replicas of a tablet
# hold the same rows.

# %%
replicas = verify_replicas(cluster.storage, cluster.catch_up(), cluster.ledger)
assert replicas.holds, replicas.violations
assert not replicas.differing
print(f"{len(replicas.replicas)} replica tables hold what they should")

# %% [markdown]
# ## The end
#
# Closing the cluster lets the embedded ZooKeeper stop. A session that was there before stays.

# %%
cluster.close()
directory.cleanup()
if session_that_was_there is None:
    spark.stop()
