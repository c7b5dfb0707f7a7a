"""Bytes between machines: frames, limits, identity, the two ends of a stream. It knows no algorithm."""
