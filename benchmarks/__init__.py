"""How fast it is: each figure beside its floor or its peer, measured in the same run (`make bench`).

A module here takes part by having `BENCHMARKS: dict[str, Callable[[], list[Result]]]`: names and what measures them.
"""
