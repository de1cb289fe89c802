"""What keeps replicas and log whole and small: repair, compaction, vacuum, verification."""
