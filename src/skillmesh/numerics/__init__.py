"""Numbers as modules store them, low-rank algebra, thread limits and the counting of costs."""
