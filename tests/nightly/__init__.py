"""What a night finds and a test run has no time for: campaigns of seeds, each a small file with one function.

    def play(seed: int, folder: Path) -> None      raises if anything is wrong; what it does depends on the seed alone

`make nightly` runs all of them, and goes on where it was; `python -m tests.nightly flips --seed 4711` runs one seed.
"""
