"""What one agent knows helps another learn: classes that recur, rows of heads that move, tasks that grow."""
