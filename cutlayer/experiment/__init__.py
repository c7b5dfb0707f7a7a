"""Runs as folders: configuration, journal, checkpoints, comparisons."""
