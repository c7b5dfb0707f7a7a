"""Views of a run over the network: a page for people, and metrics for programs."""
