# %% [markdown]
# # A streaming load
#
# Files arrive in a directory, and Spark's structured streaming brings their rows into a table, while a node joins. The
# stream is stopped in the middle and begun again from its checkpoint; every row lands once. Then the cluster's own
# epochs are followed as a stream.
#
# It needs this project and Java 17 or 21. It is plain Python with cell marks: open it as a notebook in Jupyter (with
# jupytext) or VS Code, or run the file. Each claim is followed by an `assert`.

# %%
import tempfile
from pathlib import Path

import epochlake
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake import pictures
from pyspark.sql import SparkSession

# %% [markdown]
# ## A cluster and a table

# %%
directory = tempfile.TemporaryDirectory(prefix="epochlake-tour-", ignore_cleanup_errors=True)
home = Path(directory.name)
configuration = epochlake.Configuration(root=str(home / "root"))
epochlake.init_cluster(configuration, "tour", reason="to stream into a table")
cluster = epochlake.open_cluster(configuration)
for name, rack in {"n1": "r1", "n2": "r2", "n3": "r3"}.items():
    epochlake.add_node(cluster, name, "dc1", rack, [("d1", str(home / name), 10**9)])
coordinator = epochlake.Coordinator(cluster)
assert coordinator.run(until_idle=True).idle
epochlake.create_keyspace(cluster, "web", {"dc1": 3})
columns = [("id", "bigint", False), ("page", "string", True)]
epochlake.create_table(cluster, "web.clicks", columns, ["id"], tablets=4)
table_at = cluster.catch_up().epoch

# %% [markdown]
# ## Files arrive
#
# Somebody else's files, which is how most streams begin; Kafka or any other source of Spark does as well.

# %%
ROWS = 1_000
arriving = home / "arriving"
arriving.mkdir()


def arrive(number: int) -> None:
    ids = range(number * ROWS, (number + 1) * ROWS)
    partial = home / f"{number}.parquet"
    pq.write_table(pa.table({"id": ids, "page": [f"/page/{id % 7}" for id in ids]}), partial)
    partial.rename(arriving / partial.name)


for number in range(3):
    arrive(number)

# %% [markdown]
# ## Into the table
#
# `batch` names the stream: each of its micro-batches is a named batch of the gate, so one that comes again after the
# driver died lands once. The checkpoint is Spark's, as always. The root is named by its whole path, as tasks open it
# wherever they run.

# %%
session_that_was_there = SparkSession.getActiveSession()
spark = session_that_was_there or epochlake.session("epochlake-tour")
epochlake.register(spark)


def stream_what_is_there() -> int:
    """Bring in what has arrived; how many rows the table has then."""
    clicks = spark.readStream.schema("id bigint, page string").option("maxFilesPerTrigger", 1).parquet(str(arriving))
    into = clicks.writeStream.format("epochlake").options(root=str(home / "root"), batch="clicks")
    into = into.option("checkpointLocation", str(home / "checkpoint"))
    query = into.trigger(availableNow=True).start("web.clicks")
    assert query.awaitTermination(120)
    return cluster.count("web.clicks")


assert stream_what_is_there() == 3 * ROWS

# %% [markdown]
# ## A node joins meanwhile
#
# `n4` asks to join, more files arrive, and the stream goes on from its checkpoint while the coordinator is at work. The
# stream knows nothing of it: each micro-batch is planned at the newest epoch, and fences refuse what is older.

# %%
epochlake.add_node(cluster, "n4", "dc1", "r1", [("d1", str(home / "n4"), 10**9)], reason="more room")
for number in range(3, 6):
    arrive(number)
clicks = spark.readStream.schema("id bigint, page string").option("maxFilesPerTrigger", 1).parquet(str(arriving))
into = clicks.writeStream.format("epochlake").options(root=str(home / "root"), batch="clicks")
query = into.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start("web.clicks")
moved = coordinator.run(until_idle=True)
assert query.awaitTermination(120)
assert moved.tablets_moved > 0
assert cluster.count("web.clicks", consistency="QUORUM") == 6 * ROWS

# %% [markdown]
# ## A stream that is begun again
#
# The checkpoint is lost, and the stream begins with the first file: all of its batches have landed before, under their
# names. Nothing comes twice.

# %%
(home / "checkpoint").rename(home / "lost")
assert stream_what_is_there() == 6 * ROWS
with cluster.pipeline("check", spark) as pipeline:
    rows = pipeline.read("web.clicks", consistency="ALL")
    assert rows.count() == rows.select("id").distinct().count() == 6 * ROWS

# %% [markdown]
# ## The epochs as a stream
#
# `system.log` gives each epoch once, from any one on: for alarms, caches, or a copy of the history elsewhere.

# %%
log = spark.readStream.format("epochlake").options(root=str(home / "root"), startingEpoch=table_at + 1)
epochs = log.load("system.log").writeStream.format("memory").queryName("epochs").trigger(availableNow=True).start()
assert epochs.awaitTermination(120)
seen = [row.epoch for row in spark.sql("SELECT epoch FROM epochs ORDER BY epoch").collect()]
assert seen == list(range(table_at + 1, cluster.catch_up().epoch + 1))
spark.sql("SELECT epoch, event, summary FROM epochs ORDER BY epoch").show(8, truncate=60)

# %% [markdown]
# The join as a picture.

# %%
timeline = pictures.timeline(cluster, table_at)
assert "join n4" in {lane for trace in timeline.data for lane in trace.y if lane}
timeline

# %% [markdown]
# ## The end
#
# Closing the cluster lets the embedded ZooKeeper stop. A session that was there before stays.

# %%
spark.sql("DROP VIEW IF EXISTS epochs")
cluster.close()
directory.cleanup()
if session_that_was_there is None:
    spark.stop()
