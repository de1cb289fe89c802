"""The ZooKeeper server that a cluster on one machine starts by itself."""
