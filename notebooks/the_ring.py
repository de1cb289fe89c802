# %% [markdown]
# # The ring
#
# A keyspace can be placed on a ring of tokens, by Apache Cassandra's rules. This tour lets a node join such a ring
# and looks at every step of it. `cassandra_what_if.py` asks what would happen to a Cassandra cluster that exists
# already.
#
# It needs this project and Java 17 or 21. It is plain Python with cell marks: open it as a notebook in Jupyter (with
# jupytext) or VS Code, or run the file. Each claim is followed by an `assert`.

# %%
import tempfile
from functools import reduce
from pathlib import Path

import epochlake
from epochlake import pictures
from epochlake.metastore.following.quorums import quorums_of, verify_quorums
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

# %% [markdown]
# A Spark session that is there already is used as it is; without one, a local one is started.

# %%
session_that_was_there = SparkSession.getActiveSession()
spark = session_that_was_there or epochlake.session("epochlake-tour")

# %% [markdown]
# ## A keyspace on the ring
#
# Three nodes in three racks, in a temporary directory; the default configuration brings its own ZooKeeper. On a ring
# every node owns tokens: these have two each.

# %%
directory = tempfile.TemporaryDirectory(prefix="epochlake-tour-", ignore_cleanup_errors=True)
home = Path(directory.name)
configuration = epochlake.Configuration(root=str(home / "root"))
epochlake.init_cluster(configuration, "tour", reason="to look at a ring")
cluster = epochlake.open_cluster(configuration)


def add_node(name: str, rack: str) -> None:
    epochlake.add_node(cluster, name, "dc1", rack, [("d1", str(home / name), 10**9)], count=2)


for name, rack in {"n1": "r1", "n2": "r2", "n3": "r3"}.items():
    add_node(name, rack)
assert epochlake.Coordinator(cluster).run(until_idle=True).idle

# %% [markdown]
# The keyspace says that it is on the ring, and how many replicas each row has in each datacenter. A table in it has
# no tablets.

# %%
epochlake.create_keyspace(cluster, "shop", {"dc1": 3}, placement=epochlake.PlacementKind.RING)
columns = [("id", "bigint", False), ("note", "string", True)]
epochlake.create_table(cluster, "shop.orders", columns, ["id"])
before = cluster.catch_up().epoch

# %% [markdown]
# A row's primary key hashes to a token, and the nodes that meet from there on along the ring are its replicas. With
# three racks and three replicas, every range has one in each rack.

# %%
frames = epochlake.MetadataFrames(spark, cluster)
frames.at(before).ring_ranges.select("range", "token_start", "token_end", "reads", "writes").show()
racks = frames.at(before).read_placements.groupBy("tablet").agg(F.countDistinct("rack").alias("racks"))
assert racks.where("racks != 3").isEmpty()

# %% [markdown]
# Jobs write through a pipeline, as they do with tablets.

# %%
ROWS = 2_000
orders = spark.range(ROWS).withColumn("note", F.concat(F.lit("order "), "id"))
with cluster.pipeline("tour-load", spark) as pipeline:
    written = pipeline.write(orders, "shop.orders", consistency="QUORUM")
assert written.rows == ROWS

# %% [markdown]
# ## A node joins
#
# A join is an operation of four steps, each an epoch of its own. Its plan is computed when it is prepared and is in
# the log from then on, so whichever coordinator comes next goes on with it.

# %%
add_node("n4", "r1")
assert epochlake.Coordinator(cluster).run(until_idle=True).idle
joined = cluster.catch_up().epoch

# %% [markdown]
# The operation as it was at each epoch: `step` is what had been done. After `FINISH` it is in flight no more.

# %%
epochs = range(before, joined + 1)


def at_each_epoch(part: str) -> DataFrame:
    """A part of the metadata at every epoch of the join, with the epoch in column `at`."""
    parts = [getattr(frames.at(epoch), part).withColumn("at", F.lit(epoch)) for epoch in epochs]
    return reduce(DataFrame.unionAll, parts)


operations = at_each_epoch("operations").sort("at").collect()
for row in operations:
    print(f"epoch {row.at}: {row.kind} of {row.node}, {row.step} is done, {row.next_step} comes next", end="")
    print(f", {row.locked_ranges} ranges are locked")
assert [row.step for row in operations] == ["PREPARE", "START", "MID"]
prepare, start, mid = (row.at for row in operations)
finish = mid + 1
assert frames.at(finish).operations.isEmpty()

# %% [markdown]
# What the steps do: from `START` on `n4` gets the writes of the ranges that come to it, from `MID` on it serves their
# reads, and at `FINISH` the node that gives them up is written to no more. No step changes reads and writes at once.

# %%
sides = [
    at_each_epoch(f"{kind}_placements").select("at", "node", F.lit(kind).alias("kind")) for kind in ("write", "read")
]
counts = sides[0].unionAll(sides[1]).groupBy("at", "kind").pivot("node", ["n1", "n2", "n3", "n4"]).count().na.fill(0)
counts.sort("at", F.desc("kind")).show()
of_n4 = {(row.at, row.kind): row.n4 for row in counts.collect()}
gained = of_n4[finish, "write"]
assert gained > 0
assert [of_n4[epoch, "write"] for epoch in (prepare, start, mid, finish)] == [0, gained, gained, gained]
assert [of_n4[epoch, "read"] for epoch in (prepare, start, mid, finish)] == [0, 0, gained, gained]

# %% [markdown]
# Between `START` and `FINISH` a write has to reach its consistency level among the old replicas and among the new
# ones. `write_set` says where a replica counts.

# %%
at_start = frames.at(start).write_placements
changing = at_start.where("write_set = 'new'").select("tablet")
at_start.join(changing, "tablet", "left_semi").select("tablet", "node", "write_set").sort("tablet", "node").show()
assert frames.at(finish).write_placements.where("write_set != 'old'").isEmpty()

# %% [markdown]
# The ring as it was then, as a picture: a circle for each replica, and outside of them, hatched, who gets writes only.

# %%
joining = pictures.ring(cluster, "shop", at=start)
assert "n4: writes only" in [trace.name for trace in joining.data]
joining

# %% [markdown]
# What the join has moved, as flows: `n4` alone gets something.

# %%
flows = pictures.ring_flows(cluster, "shop", before, joined)
[drawn] = flows.data
assert {drawn.node.label[target] for target in drawn.link.target} == {"n4"}
flows

# %% [markdown]
# ## No read missed a write
#
# At every epoch, and with the views of the epoch before it, each read quorum met each write quorum. This is checked
# by going through the whole log, quorum by quorum.

# %%
assert verify_quorums(cluster.log()) == ()

# %% [markdown]
# The same check shows what the steps are for. Had the ring gone from before the join to after it in one step, a
# reader of the one view and a writer of the other could have missed each other.

# %%
at_once = quorums_of([cluster.at(before), cluster.at(joined)])
print(at_once[0].message)
assert at_once

# %% [markdown]
# The rows are where they belong, and are read at `ALL`: from every replica.

# %%
with cluster.pipeline("tour-check", spark) as pipeline:
    assert pipeline.read("shop.orders", consistency="ALL").distinct().count() == ROWS
cluster.close()

# %% [markdown]
# ## The end
#
# A session that was there before stays.

# %%
directory.cleanup()
if session_that_was_there is None:
    spark.stop()
