"""The components of the cluster metadata, one module each: its state, its formats, its differences and its tables."""
