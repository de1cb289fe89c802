"""Where data belongs: tokens, tablets, rings, transitions, balancing. No I/O but DataFrames."""
