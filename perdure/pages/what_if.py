"""The report of a what-if as one HTML file, which needs no server."""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from perdure.pages._site import HERE
from perdure.runs.diagrams import DRAWN, to_svg
from perdure.runs.what_if import RunReport, WhatIfReport


def what_if_page(report: WhatIfReport, change: Mapping[str, str]) -> str:
    """Return the report as an HTML document, with both drawings of each run that differs.

    `change`: the text of each change by its name, e.g. `{"--policy": '{"ask": "unsafe"}'}`. The document loads no other file and runs no script.
    """
    templates = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True)
    templates.globals.update(drawn=_drawn)
    return templates.get_template("what_if.html").render(
        style=Markup((HERE / "static" / "site.css").read_text(encoding="utf-8")), change=change, report=report
    )


def _drawn(run: RunReport) -> list[Markup]:
    """Return the drawings of the run before and after, which highlight the calls that differ. A run with too many calls has none."""
    lit = {
        note.call for notes in (run.approvals_added, run.approvals_removed, run.refused, run.allowed) for note in notes
    }
    for line in run.differences:
        writer, _, reader = line[2:].partition(" → ")
        lit |= {writer.partition(" ")[0], reader.partition(" ")[0]}
    if any(len(drawing.nodes) > DRAWN for drawing in run.drawings):
        return []
    return [Markup(to_svg(drawing, lit=lit)) if drawing.nodes else Markup() for drawing in run.drawings]
