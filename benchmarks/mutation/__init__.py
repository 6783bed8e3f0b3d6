"""Mutants of the core: small changes of the source that a test should notice."""
