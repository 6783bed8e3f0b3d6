"""Reading of images: task folders and zips, splits, decoding, and demo tasks drawn by code."""

from skillmesh.data.folder import ImageFile, Split, TaskImages, find_tasks, open_task
from skillmesh.data.images import UnreadableImageError, decode

__all__ = ["ImageFile", "Split", "TaskImages", "UnreadableImageError", "decode", "find_tasks", "open_task"]
