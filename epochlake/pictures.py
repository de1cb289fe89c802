"""Pictures of a cluster, as figures of Plotly: `pip install 'epochlake[pictures]'`.

    from epochlake import open_cluster, pictures

    with open_cluster() as cluster:
        pictures.timeline(cluster)                                   # shows itself in a notebook
        pictures.save("report.html", pictures.tablets(cluster), pictures.moved_bytes(cluster))

Each function returns a `plotly.graph_objects.Figure`: show it, change it, or save it. docs/notebooks.md shows them.
"""

from __future__ import annotations

from epochlake.jobs.pictures.drawing import flows, moved_bytes, ring, ring_flows, save, tablets, timeline

__all__ = ["flows", "moved_bytes", "ring", "ring_flows", "save", "tablets", "timeline"]
