"""What everything else stands on: randomness, threads, files, logs."""
