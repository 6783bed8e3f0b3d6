"""Stored arrays, low-rank algebra, counting of costs, progress reports, and settings of the process."""
