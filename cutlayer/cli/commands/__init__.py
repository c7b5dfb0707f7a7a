"""What the commands do. Everything that loads torch or numpy is in here."""
