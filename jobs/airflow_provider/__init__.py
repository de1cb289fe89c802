"""The Airflow provider: hook, sensors, triggers, operators, examples. Its public names are in `epochlake.airflow`.

Parsing a DAG imports what is at the top of these modules, again and again: neither Spark nor Delta nor ZooKeeper's
client. The folder is not called `airflow`, as a job that is submitted by its path has the folder `jobs` on its path.
"""
