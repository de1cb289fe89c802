"""The immutable cluster metadata and the events that change it. Pure: no file, clock, randomness, ZooKeeper or Spark."""
