"""Simulated devices and seconds."""
