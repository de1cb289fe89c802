"""The gate: reading and writing tables while their placement changes (design, section 10).

`Pipeline` is in `pipeline.pipeline`: what only wants an address must not pay for Spark.
"""
