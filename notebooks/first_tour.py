# %% [markdown]
# # A first tour
#
# A table that is kept three times, on three storage nodes: written, read, asked by SQL, and looked at. Everything is in
# a temporary directory, and nothing but the last part starts Spark.
#
# It needs this project and Java 17 or 21. It is plain Python with cell marks: open it as a notebook in Jupyter (with
# jupytext) or VS Code, or run the file. Each claim is followed by an `assert`.

# %%
import tempfile
from pathlib import Path

import epochlake
import pyarrow as pa
import pyarrow.compute as pc
from epochlake import pictures

# %% [markdown]
# ## A cluster
#
# Only the root has to be named: the log is kept there, and the default configuration brings its own ZooKeeper. With
# executors on other machines take a directory that all of them see, or an object store.

# %%
directory = tempfile.TemporaryDirectory(prefix="epochlake-tour-", ignore_cleanup_errors=True)
home = Path(directory.name)
configuration = epochlake.Configuration(root=str(home / "root"))
epochlake.init_cluster(configuration, "tour", reason="a first tour")
cluster = epochlake.open_cluster(configuration)

# %% [markdown]
# A node is a place where rows are kept: here each has one volume, a directory of 1 GB. A node is asked for, and a
# coordinator carries that out.

# %%
for name, rack in {"n1": "r1", "n2": "r2", "n3": "r3"}.items():
    epochlake.add_node(cluster, name, "dc1", rack, [("d1", str(home / name), 10**9)], reason="the first nodes")
report = epochlake.Coordinator(cluster).run(until_idle=True)
assert report.requests_finished == 3
cluster.nodes()

# %% [markdown]
# ## A table
#
# The keyspace says how many replicas each row has, in each datacenter. The table says its columns and its key: a row
# with a key that is there already replaces the other one.

# %%
epochlake.create_keyspace(cluster, "shop", {"dc1": 3}, reason="a first tour")
columns = [("id", "bigint", False), ("city", "string", True), ("amount", "double", True)]
epochlake.create_table(cluster, "shop.orders", columns, ["id"], tablets=4, reason="a first tour")
cluster.table("shop.orders")

# %% [markdown]
# ## Rows, without Spark
#
# `write` takes a table of Arrow, a DataFrame of pandas or a list of dicts. When it returns, a quorum of the replicas of
# each row has it on its disks.

# %%
CITIES = ["Rome", "Oslo", "Lima"]
orders = pa.table(
    {"id": range(3_000), "city": [CITIES[n % 3] for n in range(3_000)], "amount": [n % 90 + 0.5 for n in range(3_000)]}
)
written = cluster.write("shop.orders", orders, consistency="QUORUM", batch="monday")
assert written.rows == 3_000
written

# %% [markdown]
# A load that is not sure whether it has ended is made again under its name, and lands once.

# %%
again = cluster.write("shop.orders", orders, consistency="QUORUM", batch="monday")
assert again.already
assert cluster.count("shop.orders") == 3_000

# %% [markdown]
# One row by its key, some rows by a filter, an order that is corrected and one that is taken back.

# %%
assert cluster.get("shop.orders", 7) == {"id": 7, "city": "Oslo", "amount": 7.5}
cluster.write("shop.orders", [{"id": 7, "city": "Oslo", "amount": 70.0}])
cluster.delete("shop.orders", [{"id": 8}])
assert cluster.get("shop.orders", 7)["amount"] == 70.0
assert cluster.get("shop.orders", 8) is None
dear = cluster.scan("shop.orders", columns=["id"], where=pc.field("amount") > 89).read_all()
print(f"{dear.num_rows} orders of more than 89")

# %% [markdown]
# SQL is answered by DuckDB, over the rows that the gate reads.

# %%
by_city = cluster.sql(
    "SELECT city, count(*) AS orders, sum(amount) AS total FROM shop.orders GROUP BY city ORDER BY city"
)
table = by_city.read_all()
print(table.to_pandas())
assert sum(table["orders"].to_pylist()) == 2_999

# %% [markdown]
# ## The same with Spark
#
# A pipeline is a run of a Spark job at the gate. A session that is there already is used as it is.

# %%
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

session_that_was_there = SparkSession.getActiveSession()
spark = session_that_was_there or epochlake.session("epochlake-tour")
with cluster.pipeline("tuesday-load", spark) as pipeline:
    more = spark.range(3_000, 5_000).selectExpr("id", "'Quito' AS city", "CAST(1 AS double) AS amount")
    written = pipeline.write(more, "shop.orders", consistency="QUORUM", batch="tuesday")
    cities = pipeline.read("shop.orders", consistency="QUORUM").groupBy("city").agg(F.count("*").alias("orders"))
    found = {row.city: row.orders for row in cities.collect()}
assert written.rows == found["Quito"] == 2_000
assert sum(found.values()) == cluster.count("shop.orders") == 4_999

# %% [markdown]
# ## What happened
#
# Every change of the cluster is an epoch, with its author and reason. Rows are no epochs: they are in the replicas.

# %%
history = cluster.history()
assert [row.epoch for row in history] == list(range(1, cluster.metadata.epoch + 1))
assert {row.reason for row in history} >= {"a first tour", "the first nodes"}
history

# %% [markdown]
# The table's ring: four tablets, each on all three nodes. Point at an arc to see whose it is.

# %%
ring = pictures.ring(cluster, "shop.orders")
assert {trace.name for trace in ring.data} == {"n1", "n2", "n3"}
ring

# %% [markdown]
# What each volume holds of each tablet.

# %%
tablets = pictures.tablets(cluster)
assert tablets.data[0].z.shape == (3, 4)
tablets

# %% [markdown]
# Several pictures in a file that needs no network, for a mail or a ticket.

# %%
page = pictures.save(home / "tour.html", ring, tablets, pictures.timeline(cluster), title="A first tour")
assert page.stat().st_size > 10**6

# %% [markdown]
# ## The end
#
# Closing the cluster lets the embedded ZooKeeper stop. A session that was there before stays. What comes next:
# `nodes_under_load.py` lets nodes come, go and die under writers.

# %%
cluster.close()
directory.cleanup()
if session_that_was_there is None:
    spark.stop()
