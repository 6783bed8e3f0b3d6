"""Quiet loading: libraries that log what the user is told anyway, or need not know."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Drop errors, warnings and less of these loggers, and what this thread logs with none in particular.

    Everything else, and the levels that a program has set, stay as they are.
    """
    with ExitStack() as when_over:
        for logger in map(logging.getLogger, names):
            when_over.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        root, here = logging.getLogger(), threading.get_ident()

        def of_others(record: logging.LogRecord) -> bool:
            return record.thread != here or record.levelno >= logging.CRITICAL

        root.addFilter(of_others)
        when_over.callback(root.removeFilter, of_others)
        if not root.handlers and logging.lastResort is not None:  # `logging.error` would set up one that stays
            root.addHandler(logging.lastResort)
            when_over.callback(root.removeHandler, logging.lastResort)
        yield
