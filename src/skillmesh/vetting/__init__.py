"""Vetting: the trial that decides whether a received module may answer in an agent's bank."""
