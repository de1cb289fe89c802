"""The immutable cluster metadata and its events. Pure: no file, clock, randomness, ZooKeeper or Spark."""
