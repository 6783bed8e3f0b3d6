"""A task made only of known classes: without an image, then with as many as there are."""
