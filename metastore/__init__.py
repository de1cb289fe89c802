"""The epoch log, the immutable cluster metadata, and what commits to and follows them."""
