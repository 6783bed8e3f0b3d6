"""What one agent knows helps another learn: classes that recur under other names, and what follows from it."""
