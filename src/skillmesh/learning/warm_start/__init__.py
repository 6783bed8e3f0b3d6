"""Rows of heads that move from task to task: which may, and how a new head begins with them."""
