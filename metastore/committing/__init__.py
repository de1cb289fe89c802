"""The commit protocol: from a call to its outcome."""
