"""From the metadata and measured loads to events: pure decisions."""
