"""What every part of the package may use: choices, settings, files, progress and text."""
