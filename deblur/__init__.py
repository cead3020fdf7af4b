"""Restores motion-blurred faces in photographs."""

__version__ = "0.1.0"
