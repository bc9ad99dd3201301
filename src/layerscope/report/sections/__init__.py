"""Sections of a report: one file per kind of run, here or in another package (entry points of
`layerscope.sections`)."""

from __future__ import annotations

from layerscope.core.plugins import Registry
from layerscope.report.sources import Section

sections: Registry[Section] = Registry(
    "section of a report",
    "layerscope.sections",
    name=lambda section: section.kind,
    check=lambda thing: isinstance(thing, Section),
    package="layerscope.report.sections",
    find=lambda module: [thing for thing in vars(module).values() if isinstance(thing, Section)],
)
