"""Pictures and self-contained HTML pages; needs core only."""

from mechanome.report.page import Line, Page, Role, Section, Span, spans, text
from mechanome.report.pictures import Bars, Meter, Picture, Sheet, TokenStrip, Weights
from mechanome.report.plots import Contest, Dots, HeatMap, Lines, Series
from mechanome.report.rendering import number

__all__ = [
    "Bars",
    "Contest",
    "Dots",
    "HeatMap",
    "Line",
    "Lines",
    "Meter",
    "Page",
    "Picture",
    "Role",
    "Section",
    "Series",
    "Sheet",
    "Span",
    "TokenStrip",
    "Weights",
    "number",
    "spans",
    "text",
]
