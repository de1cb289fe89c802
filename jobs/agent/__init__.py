"""The agent: a light process on a storage node, which sees its peers and its volumes and keeps a copy of the log."""
