"""Tablets: their maps, where they may be, how they move, split and merge."""
