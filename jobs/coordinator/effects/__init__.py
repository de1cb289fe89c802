"""What a round does outside the metadata before it commits."""
