"""The client, its messages and its state, and the cohort of simulated clients."""
