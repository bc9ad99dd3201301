"""Sections of a report: one file per kind of run."""
