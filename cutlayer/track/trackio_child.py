"""The process that writes one run with Trackio: reads lines of JSON, the run first, then its rounds."""

from __future__ import annotations

import json
import sys


def main() -> None:
    import trackio

    about = json.loads(sys.stdin.readline())
    try:
        older = [run for run in trackio.Api().runs(about["project"]) if run.name == about["name"]]
    except ValueError:  # no project yet
        older = []
    for run in older:
        run.delete()
    run = trackio.init(**about, embed=False, auto_log_gpu=False, auto_log_cpu=False)
    for line in sys.stdin:
        run.log(**json.loads(line))
    run.finish()


if __name__ == "__main__":
    main()
