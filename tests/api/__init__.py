"""What users call from Python."""
