"""`skillmesh challenge report`: runs compared, beside the paper, as one page, figures and tables.

`collect.py` groups the runs; `paper_tables.py` and `tables.py` make the tables; `curves.py`, `lines.py`,
`bars.py`, `heat.py`, `task_map.py` and `speedup.py` the figures; `samples.py` the images; `page.py`
the page.
"""

from skillmesh_challenge.report.make import Report, make_report, write_report

__all__ = ["Report", "make_report", "write_report"]
