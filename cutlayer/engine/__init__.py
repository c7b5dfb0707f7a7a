"""A training run: rounds, their records and their state."""
