"""A world in which production code runs under a seeded clock, disk and network."""
