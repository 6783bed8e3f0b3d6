"""Demo tasks drawn by code, so that a new user can try everything without a download.

Each family of tasks is a file with its own `TASKS`; `catalogue` combines them in a fixed order.
"""

from skillmesh.data.demo.catalogue import HIDDEN, LEARNED, demo_task_classes, draw, write_demo_tasks

__all__ = ["HIDDEN", "LEARNED", "demo_task_classes", "draw", "write_demo_tasks"]
