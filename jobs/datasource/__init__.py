"""The data source `epochlake` of Spark: tables and metadata by name, wherever Spark reads (docs/spark.md)."""
