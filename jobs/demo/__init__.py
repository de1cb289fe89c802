"""`epochlake demo`: real data, a cluster that grows under a running pipeline, and a node that is lost for good."""
