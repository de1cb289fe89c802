"""Rings and clusters that are not ours: documents, what Cassandra's tools print, and simulated operations."""
