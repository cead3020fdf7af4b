"""The quality metric as a tool: `deblur evaluate` and the same from Python.

The protocol is that of `deblur.metrics`. A report shows sharp (the ceiling), blurred and restored pictures side
by side and by blur extent, with bootstrap intervals over pictures, the share made worse and the faces seen where
there is none. Without sharp pictures it says what is left to say and calls itself unreferenced.

Importing this package is light: torch comes with `evaluate` or `Report`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from deblur.evaluation.command import add_arguments, run
from deblur.evaluation.config import EvaluationConfig

if TYPE_CHECKING:
    from deblur.evaluation.evaluation import evaluate
    from deblur.evaluation.report import Report

__all__ = ["EvaluationConfig", "Report", "add_arguments", "evaluate", "run"]

_HOMES = {"Report": "deblur.evaluation.report", "evaluate": "deblur.evaluation.evaluation"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deblur.evaluation' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
