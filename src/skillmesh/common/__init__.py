"""Helpers for every part of the package: option names, settings, files and text."""
