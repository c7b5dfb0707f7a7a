"""The basis of all other packages: randomness, threads, files, logs."""
