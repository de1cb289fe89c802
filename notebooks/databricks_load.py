# Databricks notebook source
# %% [markdown]
# # A gated load, as a notebook of a job
#
# Rows are made with Spark and written as one batch that lands once, however often the job tries this notebook. On
# Databricks its parameters are widgets, the cluster is the one that they name, and the session is the runtime's.
# Without widgets it begins a small cluster in a temporary directory, so that it can be tried anywhere.

# %%
import tempfile
from pathlib import Path

import epochlake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

session_that_was_there = SparkSession.getActiveSession()
spark = session_that_was_there or epochlake.session("epochlake-load")
widgets = getattr(globals().get("dbutils"), "widgets", None)


def parameter(name: str, otherwise: str) -> str:
    return str(widgets.get(name)) if widgets is not None else otherwise


# %% [markdown]
# ## Where the rows go
#
# The name of the batch is the run of the job, never the try: `{{job.id}}-{{job.run_id}}` in the bundle.

# %%
directory = tempfile.TemporaryDirectory(prefix="epochlake-tour-", ignore_cleanup_errors=True)
home = Path(directory.name)
configuration = epochlake.Configuration(root=parameter("root", str(home / "root")))
table = parameter("table", "air.flights")
batch = parameter("batch", "job-1-run-17")
days = int(parameter("days", "7"))

# %% [markdown]
# ## A cluster to try it with
#
# Three nodes of one volume each, in three racks, and a table with three replicas.

# %%
if widgets is None:
    epochlake.init_cluster(configuration)
    with epochlake.open_cluster(configuration) as cluster:
        for number in (1, 2, 3):
            volume = ("d1", str(home / f"n{number}"), 10**9)
            epochlake.add_node(cluster, f"n{number}", "dc1", f"r{number}", [volume])
        epochlake.Coordinator(cluster).run(until_idle=True)
        epochlake.create_keyspace(cluster, "air", {"dc1": 3})
        columns = [("day", "int", False), ("origin", "string", False), ("flights", "bigint", True)]
        epochlake.create_table(cluster, table, columns, ["day", "origin"], tablets=4)

# %% [markdown]
# ## The load
#
# The write is planned at one epoch. A replica refuses it where that epoch does not hold any more, and then it is
# planned again. `already` says that an earlier try has landed the batch: nothing is written twice.

# %%
airports = F.array(F.lit("EWR"), F.lit("JFK"), F.lit("LGA"))
rows = spark.range(days * 3).select(
    (F.col("id") / 3).cast("int").alias("day"),
    F.element_at(airports, (F.col("id") % 3).cast("int") + 1).alias("origin"),
    (F.col("id") * 10).alias("flights"),
)
with epochlake.open_cluster(configuration) as cluster, cluster.pipeline("load", spark) as pipeline:
    written = pipeline.write(rows, table, consistency="QUORUM", batch=batch)
    again = pipeline.write(rows, table, consistency="QUORUM", batch=batch)
    assert again.already
    assert pipeline.count(table) >= days * 3
    print(f"{written.rows} rows at epoch {written.epoch}, batch {batch}")

# %% [markdown]
# ## The end

# %%
directory.cleanup()
if session_that_was_there is None:
    spark.stop()
