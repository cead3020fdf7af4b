"""Maintenance commands."""
