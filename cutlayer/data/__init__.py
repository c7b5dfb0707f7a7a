"""Data: tasks by name, partitions over clients, and the rows a client holds."""
