"""The client's program."""
