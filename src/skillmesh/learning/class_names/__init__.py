"""Class names that mean the same."""
