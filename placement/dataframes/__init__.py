"""The functions of placement over Spark DataFrames."""
