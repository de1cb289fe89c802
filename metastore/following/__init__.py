"""What follows the log: its newest state, its history, snapshots, and proofs over all of it."""
