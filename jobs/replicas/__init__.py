"""Replica tables, fences and sessions, staging, reading, streaming."""
