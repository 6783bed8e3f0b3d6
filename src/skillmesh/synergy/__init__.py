"""Synergy: reuse of known classes and tasks by matching, composing, merging and extending them."""
