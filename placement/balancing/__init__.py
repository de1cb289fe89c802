"""Where replicas should move so that load is even: pure functions from arrays (or DataFrames) to a plan."""
