"""ZooKeeper: it serialises, notifies and elects; the Delta log decides."""
