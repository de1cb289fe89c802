"""The epoch log: entries, their hash chain, and the places that keep them."""
