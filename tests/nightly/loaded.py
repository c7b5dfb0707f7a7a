"""Imported once in the process that others are forked from: the digits, and everything that a run loads late."""

from __future__ import annotations

import sys

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401

import cutlayer.cli.commands.train
import cutlayer.experiment.experiment
import cutlayer.experiment.population
from cutlayer.experiment.config import parse

ROWS = (80, 100)

if "multiprocessing.forkserver" in sys.modules:
    for rows in ROWS:
        cutlayer.experiment.population.load_data(parse({"train_rows": rows}))
