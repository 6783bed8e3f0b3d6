"""Which classes of different tasks are one thing: by name, by sight, over a whole bank, and in answers."""
