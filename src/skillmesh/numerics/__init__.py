"""Numbers as modules store them, low-rank algebra, the counting of costs, and work inside a process."""
