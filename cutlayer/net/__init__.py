"""Bytes between machines: frames, streams and who is at their ends. It knows no algorithm."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said in our own words
