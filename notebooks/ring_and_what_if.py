# %% [markdown]
# # The ring, and what if
#
# A keyspace can be placed on a ring of tokens, by Apache Cassandra's rules. This tour lets a node join such a ring
# and looks at every step of it, then asks what would happen to a Cassandra cluster that exists already.
#
# It needs this project and Java 17 or 21. It is plain Python with cell marks: open it as a notebook in Jupyter (with
# jupytext) or VS Code, or run the file. Each claim is followed by an `assert`.

# %%
import random
import tempfile
from functools import reduce
from pathlib import Path

import epochlake
from epochlake.jobs.views.what_if import parse_keyspace, with_keyspaces, with_operations
from epochlake.metastore.following.quorums import quorums_of, verify_quorums
from epochlake.placement.dataframes.ring import read_placements
from epochlake.placement.ring.strategies import replication_of
from epochlake.placement.what_if.nodetool import from_ring
from epochlake.placement.what_if.simulate import simulate
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
# ## What if?
#
# The rest needs no Epochlake cluster. What `nodetool ring` prints of a Cassandra cluster, here of an invented one
# with six nodes in three racks, and how keyspaces are replicated are all that has to be known.

# %%
NODETOOL_RING = """
Datacenter: dc1
==========
Address     Rack    Status  State   Load        Owns                            Token
                                                                  8326362293528500450
10.0.1.10   rack2   Up      Normal  105.00 GiB  22.55%           -8819576521390300551
10.0.0.10   rack1   Up      Normal  264.67 GiB  56.84%           -8544112207565578183
10.0.2.10   rack3   Up      Normal  428.94 GiB  92.11%           -7485500404787383959
10.0.0.10   rack1   Up      Normal  264.67 GiB  56.84%           -2339778122483877183
10.0.1.11   rack2   Up      Normal  360.66 GiB  77.45%            3682356746476155087
10.0.0.11   rack1   Up      Normal  200.99 GiB  43.16%            4222237259570387991
10.0.1.11   rack2   Up      Normal  360.66 GiB  77.45%            5467815338463333034
10.0.1.10   rack2   Up      Normal  105.00 GiB  22.55%            5569357723447112598
10.0.0.11   rack1   Up      Normal  200.99 GiB  43.16%            5622226597268563353
10.0.2.10   rack3   Up      Normal  428.94 GiB  92.11%            6871546552558931138
10.0.2.11   rack3   Up      Normal  36.72 GiB   7.89%            7429680459760304783
10.0.2.11   rack3   Up      Normal  36.72 GiB   7.89%            8326362293528500450
"""
keyspaces = dict([parse_keyspace("shop:dc1=3")])
existing = with_keyspaces(from_ring(NODETOOL_RING, keyspaces), keyspaces, {"shop": 500 * 10**9})
assert {node["rack"] for node in existing["nodes"]} == {"rack1", "rack2", "rack3"}

# %% [markdown]
# Operations are said in words and simulated one after another, a step at a time. A newcomer joins with two tokens
# that even out its rack, then an old node leaves.

# %%
WORDS = ["join 10.0.0.12 dc1/rack1 tokens=2", "leave 10.0.0.11"]
answer = simulate(with_operations(existing, WORDS))
for step in answer["steps"]:
    moved = f", {step['bytes']['shop'] / 10**9:.0f} GB would move" if "bytes" in step else ""
    print(f"epoch {step['epoch']}: {step['step']} of '{WORDS[step['op']]}': {step['result']}{moved}")
assert {step["result"] for step in answer["steps"]} == {"success"}
assert answer["settled"]
assert answer["final_equivalent_to_fresh_calculation"]

# %% [markdown]
# What a cluster would refuse is refused here, with the same reason: a rack would be lost.

# %%
refused = simulate(with_operations(existing, ["leave 10.0.1.10", "leave 10.0.1.11"]))
[rejected] = [step for step in refused["steps"] if step["op"] == 1 and step["step"].startswith("PREPARE")]
print(rejected["reason"])
assert rejected["result"] == "rejected"

# %% [markdown]
# ## Placements by Spark
#
# Who owns which token is small; what follows from it is not, so Spark computes placements in parallel, each task a
# slice of the ring. Here for the ring as it is after the join and the leave: the simulation came to the same ranges.

# %%
REPLICATION = replication_of(keyspaces["shop"]["strategy"], keyspaces["shop"]["replication"])
TOKENS = {int(node): tokens for node, tokens in answer["steps"][-1]["tokens"].items()}
nodes = spark.createDataFrame(
    [(node["id"], node["dc"], node["rack"]) for node in answer["nodes"]], "node_id int, datacenter string, rack string"
)
tokens = spark.createDataFrame(
    [(node, token) for node, owned in TOKENS.items() for token in owned], "node_id int, token bigint"
)
placed = read_placements(nodes, tokens, REPLICATION, slices=2)
placed.sort("start_token").show()
simulated = answer["steps"][-1]["placements"]["shop"]["reads"]
assert {(row.start_token, row.end_token, frozenset(row.replicas)) for row in placed.collect()} == {
    (start, end, frozenset(replicas)) for start, end, replicas in simulated
}

# %% [markdown]
# The same function carries big rings: here 300 nodes with 16 random tokens each.

# %%
chance = random.Random(300)
many_nodes = spark.range(300).selectExpr(
    "cast(id as int) as node_id", "'dc1' as datacenter", "concat('rack', id % 6) as rack"
)
many_tokens = spark.createDataFrame(
    [(node, chance.randrange(-(2**63), 2**63)) for node in range(300) for _ in range(16)], "node_id int, token bigint"
)
ranges = read_placements(many_nodes, many_tokens, REPLICATION, slices=4)

# %% [markdown]
# How much of the ring each node would hold is one aggregation away. Lengths are taken as doubles: the top range ends
# at -2^63, which stands for 2^63 there.

# %%
top = F.when(F.col("end_token") == -(2**63), 2.0**63).otherwise(F.col("end_token").cast("double"))
lengths = ranges.select(F.explode("replicas").alias("node_id"), ((top - F.col("start_token")) / 2.0**64).alias("part"))
shares = lengths.groupBy("node_id").agg(F.sum("part").alias("share"))
holders, least, most, whole = shares.agg(F.count("*"), F.min("share"), F.max("share"), F.sum("share")).first()
print(f"a node holds from {least:.2%} to {most:.2%} of the ring; evenly it would be {3 / 300:.2%}")
assert holders == 300
assert abs(whole - 3) < 1e-9, "three replicas of everything"

# %% [markdown]
# ## The end
#
# A session that was there before stays.

# %%
directory.cleanup()
if session_that_was_there is None:
    spark.stop()
