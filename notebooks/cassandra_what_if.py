# %% [markdown]
# # What if: a Cassandra cluster that exists already
#
# A node is to join a Cassandra cluster, another one is to leave. What would move, from whom to whom, and would the
# cluster take it? This tour needs no Epochlake cluster and touches no Cassandra: what `nodetool ring` prints, here of
# an invented cluster with six nodes in three racks, and how keyspaces are replicated are all that has to be known.
#
# It needs this project and Java 17 or 21. It is plain Python with cell marks: open it as a notebook in Jupyter (with
# jupytext) or VS Code, or run the file. Each claim is followed by an `assert`.

# %%
import random

import epochlake
from epochlake import pictures
from epochlake.jobs.views.what_if import parse_keyspace, with_keyspaces, with_operations
from epochlake.placement.dataframes.ring import read_placements
from epochlake.placement.ring.strategies import replication_of
from epochlake.placement.what_if.nodetool import from_ring
from epochlake.placement.what_if.simulate import simulate
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

# %% [markdown]
# ## The cluster as it is
#
# The output is pasted as it was printed. `describering` does as well.

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
# Its ring as a picture: a circle for each replica, clockwise from the lowest token.

# %%
pictures.ring(simulate(existing), "shop")

# %% [markdown]
# ## Operations, step by step
#
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
# What moves from whom to whom, as flows: on the left who gives, on the right who gets. Replicas stay in their racks.

# %%
moves = pictures.ring_flows(answer, "shop", bytes=500 * 10**9)
[flows] = moves.data
rack_of = {node.get("address"): node["rack"] for node in answer["nodes"]}
named = flows.node.label
assert all(rack_of[named[a]] == rack_of[named[b]] for a, b in zip(flows.link.source, flows.link.target, strict=True))
moves

# %% [markdown]
# And the ring in the middle of the join: the newcomer gets the writes of its ranges (hatched), and reads stay where
# they were.

# %%
joining = pictures.ring(answer, "shop", at=1)
assert "10.0.0.12: writes only" in [trace.name for trace in joining.data]
joining

# %% [markdown]
# ## What is refused
#
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
session_that_was_there = SparkSession.getActiveSession()
spark = session_that_was_there or epochlake.session("epochlake-tour")
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
if session_that_was_there is None:
    spark.stop()
