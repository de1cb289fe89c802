# %% [markdown]
# # Nodes come, go and die under a live load
#
# Two writers and a reader never stop, while a fourth node joins, another leaves, and a third loses its disk and is
# replaced. At the end every row that was acknowledged is there, once, and pictures show what moved.
#
# It needs this project and Java 17 or 21. It is plain Python with cell marks: open it as a notebook in Jupyter (with
# jupytext) or VS Code, or run the file. Each claim is followed by an `assert`.

# %%
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import epochlake
import pyarrow as pa
from epochlake import pictures
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

# %% [markdown]
# ## Three nodes, one table

# %%
directory = tempfile.TemporaryDirectory(prefix="epochlake-tour-", ignore_cleanup_errors=True)
home = Path(directory.name)
configuration = epochlake.Configuration(root=str(home / "root"))
epochlake.init_cluster(configuration, "tour", reason="to look at nodes under load")
cluster = epochlake.open_cluster(configuration)


def volume_of(name: str) -> list[tuple[str, str, int]]:
    return [("d1", str(home / name), 10**9)]


for name, rack in {"n1": "r1", "n2": "r2", "n3": "r3"}.items():
    epochlake.add_node(cluster, name, "dc1", rack, volume_of(name))
coordinator = epochlake.Coordinator(cluster)
assert coordinator.run(until_idle=True).idle
epochlake.create_keyspace(cluster, "shop", {"dc1": 3})
epochlake.create_table(cluster, "shop.orders", [("id", "bigint", False), ("writer", "bigint", True)], ["id"], tablets=8)
before = cluster.catch_up().epoch

# %% [markdown]
# ## A load that does not stop
#
# Each writer writes batch after batch at `QUORUM`, with names, and remembers what was acknowledged. A write that fails
# (a node has just died, and its tablets are on their way) is tried again under the same name: it lands once. The
# reader counts, and may never see fewer rows than were acknowledged before it asked.

# %%
ROWS = 500
stopped = threading.Event()
acknowledged: dict[int, int] = {0: 0, 1: 0}
failures: list[str] = []
counts: list[tuple[int, int]] = []


def keep_writing(writer: int) -> None:
    while not stopped.is_set():
        number = acknowledged[writer]
        first = (number * 2 + writer) * ROWS
        rows = pa.table({"id": range(first, first + ROWS), "writer": [writer] * ROWS})
        try:
            cluster.write("shop.orders", rows, consistency="QUORUM", batch=f"writer-{writer}/{number}")
        except (epochlake.ConsistencyNotReached, epochlake.CoordinationUnavailable) as error:
            failures.append(str(error))
            time.sleep(0.2)
        else:
            acknowledged[writer] = number + 1


def keep_counting() -> None:
    while not stopped.is_set():
        known = sum(acknowledged.values()) * ROWS
        try:
            counts.append((known, cluster.count("shop.orders", consistency="QUORUM")))
        except (epochlake.ConsistencyNotReached, epochlake.ReadDisturbed, epochlake.RowsUnreadable) as error:
            failures.append(str(error))
        time.sleep(0.1)


background = ThreadPoolExecutor(3)
running = [background.submit(keep_writing, 0), background.submit(keep_writing, 1), background.submit(keep_counting)]


def wait_for_more(batches: int = 3) -> None:
    """Until each writer has written so many more batches."""
    wanted = {writer: number + batches for writer, number in acknowledged.items()}
    until = time.monotonic() + 120
    while any(acknowledged[writer] < number for writer, number in wanted.items()):
        assert time.monotonic() < until, failures[-1:]
        for one in running:
            assert not one.done(), one.result()
        time.sleep(0.05)


wait_for_more()

# %% [markdown]
# ## Growing
#
# `n4` joins, and the coordinator gives it tablets of the others while they are written.

# %%
epochlake.add_node(cluster, "n4", "dc1", "r1", volume_of("n4"), reason="more room")
grown = coordinator.run(until_idle=True)
wait_for_more()
assert grown.tablets_moved > 0
cluster.nodes()

# %% [markdown]
# ## Shrinking
#
# `n1` leaves. Its tablets go to others first; then nothing is written to it any more, and its disk may go.

# %%
epochlake.decommission(cluster, "n1", reason="old disks")
assert coordinator.run(until_idle=True).idle
wait_for_more()
left = cluster.catch_up().epoch
assert {node.name: node.state for node in cluster.nodes(everything=True)}["n1"] == "left"
assert [node.name for node in cluster.nodes()] == ["n2", "n3", "n4"]

# %% [markdown]
# ## Losing a node
#
# The disk of `n2` is gone. Writers go on with the other two replicas: that is what `QUORUM` is for. The status says
# what is missing.

# %%
(home / "n2").rename(home / "gone")  # at once, as a disk dies: others write to it
shutil.rmtree(home / "gone", ignore_errors=True)
wait_for_more()
status = cluster.status()
lost = {node.name: node for node in status.nodes}["n2"]
print(lost.volumes[0].obstacle)
assert lost.volumes[0].obstacle
assert status.health.available

# %% [markdown]
# An operator says that it is lost, by asking for another node in its place. What `n2` had is rebuilt on `n5` from the
# replicas that are left.

# %%
epochlake.replace_node(cluster, "n2", "n5", volume_of("n5"), reason="its disk died")
assert coordinator.run(until_idle=True).idle
wait_for_more()
stopped.set()
for one in running:
    one.result(60)
background.shutdown()
assert [node.name for node in cluster.nodes()] == ["n3", "n4", "n5"]

# %% [markdown]
# ## Was anything lost?
#
# Each row that was acknowledged is there, once, read by Spark from all three replicas; and no count was ever behind.

# %%
session_that_was_there = SparkSession.getActiveSession()
spark = session_that_was_there or epochlake.session("epochlake-tour")
assert epochlake.repair(cluster, "shop.orders").complete
with cluster.pipeline("check", spark) as pipeline:
    rows = pipeline.read("shop.orders", consistency="ALL")
    found = {
        row.writer: (row.rows, row.ids)
        for row in rows.groupBy("writer").agg(F.count("*").alias("rows"), F.countDistinct("id").alias("ids")).collect()
    }
for writer, batches in acknowledged.items():
    rows_of, ids_of = found[writer]
    assert rows_of == ids_of
    assert rows_of >= batches * ROWS
assert counts
assert all(seen >= known for known, seen in counts)
print(f"{sum(acknowledged.values())} batches, {len(counts)} counts, {len(failures)} tries that had to be repeated")

# %% [markdown]
# ## What it looked like
#
# The epochs as a timeline: requests as bars, grey while they waited, and below them when tablets were on their way.

# %%
timeline = pictures.timeline(cluster, before)
assert {"join n4", "leave n1"} <= {lane for trace in timeline.data for lane in trace.y if lane}
timeline

# %% [markdown]
# Bytes that moved, by the node that they went to: what is written goes to its replicas at once, and is not in it.

# %%
moved = pictures.moved_bytes(cluster)
assert {"n4", "n5"} <= {trace.name for trace in moved.data}
moved

# %% [markdown]
# What each volume holds now, and before `n1` left.

# %%
pictures.save(home / "nodes.html", timeline, moved, pictures.tablets(cluster), pictures.tablets(cluster, at=left))
pictures.tablets(cluster)

# %% [markdown]
# ## The end
#
# Closing the cluster lets the embedded ZooKeeper stop. A session that was there before stays.

# %%
cluster.close()
directory.cleanup()
if session_that_was_there is None:
    spark.stop()
