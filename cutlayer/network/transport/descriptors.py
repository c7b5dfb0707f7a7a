"""How many connections a server can have: what the system lets it open, less what it needs for its own files."""

from __future__ import annotations

try:
    import resource
except ImportError:  # Windows, where there is no such limit
    resource = None  # type: ignore[assignment]

RESERVE = 256  # descriptors that connections never get: for checkpoints, the journal, the log, data
MOST = 16_384  # connections


def connections() -> int:
    """Raise the limit of open files as far as this user may; how many of them connections may take."""
    if resource is None:
        return MOST  # type: ignore[unreachable]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + RESERVE
    if 0 <= soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))
        soft = max(soft, raised)
    return MOST if soft < 0 else min(max(soft - RESERVE, soft // 2, 1), MOST)
