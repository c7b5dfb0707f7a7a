"""python -m tests.nightly [CAMPAIGN ...] [--seeds A:B] [--shard I/N] [--ledger FILE] [--minutes M] [--jobs J]

Plays the seeds of a night, a few at a time, and writes each down when it is done. Seeds that are written down for the
code as it is are not played again. `--seed 4711` plays one seed here and now; `--summary` says what came out.
"""

from __future__ import annotations

import argparse
import selectors
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.nightly.campaigns import NIGHT, chosen, play_of, share, todo
from tests.nightly.ledger import Entry, Ledger, commit, summary
from tests.nightly.worker import LIMIT, Worker, last_lines

LEDGER = Path("build/nightly.jsonl")
OFTEN, SELDOM = 0.5, 60.0  # seconds between two lines of progress, on a terminal and elsewhere


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", usage=about[len("python -m tests.nightly") :])
    parser.usage, parser.description = about, more
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(NIGHT)} (default: all)")
    parser.add_argument("--seeds", type=seeds, metavar="A:B", help="from A up to B (default: as many as a night has)")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="every N-th seed, from the I-th on")
    parser.add_argument("--ledger", type=Path, default=LEDGER, metavar="FILE", help=f"default: {LEDGER}")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="M", help="begin no seed after that")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="seeds at a time (default: 1)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="play this one here, and say what went wrong")
    parser.add_argument("--summary", action="store_true", help="print what the ledger holds")
    return parser.parse_args(words)


def seeds(words: str) -> range:
    first, _, last = words.partition(":")
    return range(int(first), int(last))


def shard(words: str) -> tuple[int, int]:
    number, of = (int(part) for part in words.split("/"))
    if not 1 <= number <= of:
        raise ValueError(words)
    return number, of


def night(jobs: Sequence[tuple[str, int]], workers: int, until: float, limit: float = LIMIT) -> Iterator[Entry]:
    """Play these, a few at a time; what came of each, as it ends."""
    code, left = commit(), list(reversed(jobs))
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        for _ in range(max(1, min(workers, len(jobs)))):
            worker = Worker(limit)
            stack.callback(worker.end)
            if left:
                worker.give(*left.pop())
                ready.register(worker, selectors.EVENT_READ, worker)
        while ready.get_map():
            answering = {key.data for key, _ in ready.select(timeout=1.0)}
            for worker in [key.data for key in ready.get_map().values()]:
                job, where = worker.job, worker.fileno()
                result = worker.result() if worker in answering else worker.stuck()
                if result is None:
                    continue
                error, trials = result
                ready.unregister(where)
                yield Entry(job.campaign, job.seed, not error, round(job.seconds, 3), code, last_lines(error), trials)
                if left and time.monotonic() < until:
                    worker.give(*left.pop())
                    ready.register(worker, selectors.EVENT_READ, worker)


class Progress:
    """How far it is, on standard error: on a terminal one line that changes, elsewhere a line a minute."""

    def __init__(self, total: int) -> None:
        self.total, self.begin, self.next = total, time.monotonic(), 0.0
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def show(self, entry: Entry) -> None:
        self.done[entry.campaign] += 1
        if not entry.ok:
            self.failed[entry.campaign] += 1
            self.say(f"FAILED {entry.replay}\n{entry.error}\n", "\n")
        if time.monotonic() > self.next:
            self.now()

    def now(self) -> None:
        live, minutes = sys.stderr.isatty(), (time.monotonic() - self.begin) / 60
        self.next = time.monotonic() + (OFTEN if live else SELDOM)
        each = (
            f"{name} {n}" + (f" ({self.failed[name]} failed)" if self.failed[name] else "")
            for name, n in sorted(self.done.items())
        )
        self.say(f"{self.done.total()}/{self.total} in {minutes:.1f} min: {', '.join(each)}", "" if live else "\n")

    def say(self, words: str, end: str) -> None:
        print(("\r\x1b[K" if sys.stderr.isatty() else "") + words, end=end, file=sys.stderr, flush=True)


def replay(campaign: str, seed: int) -> int:
    """One seed in this process; whatever it raises is shown whole."""
    warnings.simplefilter("ignore")
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix=f"nightly-{campaign}-") as folder:
            play_of(campaign)(seed, Path(folder))
    except Exception:
        traceback.print_exc()
        return 1
    print(f"{campaign} {seed}: as it should be, in {time.monotonic() - begin:.1f} s")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    ledger = Ledger(given.ledger)
    if given.summary:
        print(summary(ledger.read()))
        return 0
    names = chosen(given.campaigns)
    if given.seed is not None:
        if len(names) != 1:
            raise SystemExit("--seed: expected the name of one campaign")
        return replay(names[0], given.seed)
    plans = {name: share(given.seeds or range(NIGHT[name]), given.shard) for name in names}
    jobs = todo(plans, ledger.done(commit()))
    progress = Progress(len(jobs))
    try:
        for entry in night(jobs, given.jobs, time.monotonic() + 60 * given.minutes):
            ledger.add(entry)
            progress.show(entry)
    except KeyboardInterrupt:
        progress.say("interrupted: the same command goes on from here", "\n")
        return 130
    progress.now()
    progress.say("", "")
    return int(bool(progress.failed))


if __name__ == "__main__":
    sys.exit(main())
