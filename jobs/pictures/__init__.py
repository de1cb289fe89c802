"""Pictures of a cluster, as figures of Plotly: in a notebook, in a file of one page, on a web page (decision 060)."""
