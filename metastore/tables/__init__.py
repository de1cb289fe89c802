"""The cluster metadata and its history as Arrow tables and DataFrames."""
