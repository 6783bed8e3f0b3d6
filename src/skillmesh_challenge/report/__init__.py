"""`skillmesh challenge report`: compare runs with each other and with the paper, on one HTML page.

`collect.py` groups the runs; `paper_tables.py` and `tables.py` make the tables; `curves.py`, `lines.py`,
`bars.py`, `heat.py`, `task_map.py` and `speedup.py` draw the figures; `samples.py` reads the images; `page.py`
writes the page.
"""

from skillmesh_challenge.report.make import Report, make_report, write_report

__all__ = ["Report", "make_report", "write_report"]
