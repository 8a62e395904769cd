"""Pictures and self-contained HTML pages; needs core only."""

from mechanome.report.combined import Choice, Option, Stack
from mechanome.report.page import Line, Page, Role, Section, Span, spans, text
from mechanome.report.pictures import Bars, Cell, Meter, Passage, Picture, Sheet, TokenStrip, Weights
from mechanome.report.plots import Contest, Dots, HeatMap, Lines, Series
from mechanome.report.rendering import number

__all__ = [
    "Bars",
    "Cell",
    "Choice",
    "Contest",
    "Dots",
    "HeatMap",
    "Line",
    "Lines",
    "Meter",
    "Option",
    "Page",
    "Passage",
    "Picture",
    "Role",
    "Section",
    "Series",
    "Sheet",
    "Span",
    "Stack",
    "TokenStrip",
    "Weights",
    "number",
    "spans",
    "text",
]
