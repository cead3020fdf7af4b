"""Folders: plan, pipeline, journal, resume.

`plan` finds the pictures and names the results; `pipeline` decodes, generates and encodes side by side;
`journal` remembers what was done; `run` puts them together; `report` shows it; `watch` keeps at it.
"""

from deblur.batch.journal import Entry, Journal
from deblur.batch.pipeline import Outcome, Settings
from deblur.batch.plan import Job, Selection
from deblur.batch.run import Listener, Options, Summary, pixels_for_memory, preview, run

__all__ = [
    "Entry",
    "Job",
    "Journal",
    "Listener",
    "Options",
    "Outcome",
    "Selection",
    "Settings",
    "Summary",
    "pixels_for_memory",
    "preview",
    "run",
]
