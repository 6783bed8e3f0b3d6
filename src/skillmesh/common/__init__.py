"""What every part of the package may use: choices, settings, files and text."""
