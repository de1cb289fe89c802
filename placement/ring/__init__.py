"""Ring placement: which nodes hold a range of tokens, and how ranges change hands while jobs run (seed 002, CEP-21).

Pure functions over frozen values. No storage, no clock, no Spark: a state goes in, a state, a plan or a rejection
comes out.
"""
