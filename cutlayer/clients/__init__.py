"""A client, the messages it exchanges, and the cohort of those in one process."""
