"""The `epochlake` command line."""
