"""A log file that is rotated when it is large."""

from __future__ import annotations

import logging
import sys
from logging.handlers import RotatingFileHandler


class LogFile(RotatingFileHandler):
    """Lines that cannot be written are lost: a full disk does not end what is logged. It says so once."""

    told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self.told:
            self.told = True
            print(f"cutlayer: warning: {self.baseFilename}: cannot be written: {sys.exception()}", file=sys.stderr)
