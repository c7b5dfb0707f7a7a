"""How many connections a server can have: the system's limit of open files, less a reserve for its own files."""

from __future__ import annotations

try:
    import resource
except ImportError:  # Windows, where there is no such limit
    resource = None  # type: ignore[assignment]

RESERVE = 256  # descriptors kept free of connections: for checkpoints, the journal, the log, data
MOST = 16_384  # connections, at most


def connections() -> int:
    """Raise the limit of open files as far as this user may; return how many connections the server can have."""
    if resource is None:
        return MOST  # type: ignore[unreachable]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + RESERVE
    if 0 <= soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))
        soft = max(soft, raised)
    return MOST if soft < 0 else min(max(soft - RESERVE, soft // 2, 1), MOST)
