"""The two simulators of seed 002: random range movements against an independent model, and every quorum against every
other."""
