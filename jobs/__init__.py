"""What runs: the gate and the data plane, the coordinator, the command line, the spark-submit jobs."""
