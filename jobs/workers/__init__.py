"""Running a task for many items side by side: in threads of this process, or in the executors of a Spark session."""
