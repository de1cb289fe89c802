"""A track for each kind of work that a round moves on."""
