"""What a night finds and a test run has no time for: campaigns of seeds, each a small file with one function.

    def play(seed: int, folder: Path) -> int | None

It raises if anything is wrong, and what it does depends on the seed alone. It may return how many trials it was
(frames, kills); otherwise a seed counts as one.

`make nightly` runs all of them, and goes on where it was; `python -m tests.nightly flips --seed 4711` runs one seed.
"""
