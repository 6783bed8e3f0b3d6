"""What one agent knows helps another learn: rows of heads that move from task to task."""
