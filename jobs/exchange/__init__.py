"""A user's own data: files and Delta tables into tables, tables into files, and SQL over them. Starts no Spark."""
