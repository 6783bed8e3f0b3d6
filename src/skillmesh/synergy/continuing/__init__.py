"""A task of one's own goes on: more images or classes, without the old images."""
