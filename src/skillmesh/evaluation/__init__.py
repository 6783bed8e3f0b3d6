"""Measure an agent on test images."""
