"""Folders: plan, pipeline, journal, resume.

`plan` finds the pictures and names the results; `pipeline` decodes, generates and encodes side by side; `journal`
remembers what was done; `runner` puts them together; `report` shows it; `watch` keeps at it; `command` is what
`deblur restore` calls. Importing this package is light: its parts are imported with the first name that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deblur.batch.journal import Entry, Journal
    from deblur.batch.outcome import Outcome
    from deblur.batch.pipeline import Settings
    from deblur.batch.plan import Job, Selection
    from deblur.batch.runner import Listener, Options, Summary, pixels_for_memory, preview, run

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

_HOMES = {
    "Entry": "journal",
    "Job": "plan",
    "Journal": "journal",
    "Outcome": "outcome",
    "Selection": "plan",
    "Settings": "pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'deblur.batch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"deblur.batch.{_HOMES.get(name, 'runner')}"), name)
