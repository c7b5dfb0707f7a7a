"""What users call from Python: train, rounds, serve, join, open."""
