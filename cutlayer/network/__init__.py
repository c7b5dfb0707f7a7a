"""Runs with clients on other machines."""
