"""The parts of the campaign: each module has `run(seconds, seed, kept, say)`, which returns its figures."""
