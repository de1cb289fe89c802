"""Documents about a cluster, with stable keys: what commands, notebooks and pages show."""
