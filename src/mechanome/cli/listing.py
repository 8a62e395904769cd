"""What can be opened, and what a model serves: every point, where it can be read and edited, and why not elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mechanome.core import MechanomeError
from mechanome.engine import POINTS, Site

if TYPE_CHECKING:
    from mechanome.engine import Model


def model_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[Text]:
    """A few lines a model: what it is, what it serves, what to know of its weights, where it comes from."""
    for row in rows:
        state = {"yes": "on this machine", "no": "not downloaded yet"}.get(row["cached"], row["cached"])
        facts = f"{row['kind']}, {row['MB']} MB, {row['license']}, {state}"
        yield Text(row["id"], style="bold") + Text(f"  {facts}")
        yield Text(f"    {row['serves']}")
        if row["notes"]:
            yield Text(f"    {row['notes']}")
        yield Text(f"    from {row['source']}", style="dim")
    yield Text("\nA folder with safetensors or a hub id (owner/name) can be opened, too.")


def site_rows(model: Model, pattern: str = "") -> list[dict[str, Any]]:
    """What a model serves, one row a point: site, axes, layers read and edited, definition, and why not elsewhere.

    Args:
        model: an opened model.
        pattern: a site or glob, for the points it names; empty for all.

    Raises:
        UnknownSite, NotServed: a pattern that means nothing here, with the nearest names.
    """
    if pattern:
        layered: dict[str, list[Site]] = {}
        for site in _expanded(model, pattern):
            layered.setdefault(_without_layer(site), []).append(site)
        return [_row(model, name, sites) for name, sites in layered.items()]
    return [
        _row(model, name, sites) for tower in model.architecture.towers for name, sites in _points(model, tower.name)
    ]


def _without_layer(site: Site) -> str:
    """`z.h3` for `z.5.h3`."""
    return str(site) if site.layer is None else re.sub(rf"\.{site.layer}(?=\.|$)", "", str(site), count=1)


def _expanded(model: Model, pattern: str) -> list[Site]:
    """The sites of a pattern; in a model of several towers it must name one."""
    try:
        return list(model.expand(pattern))
    except MechanomeError as refusal:
        towers = [str(tower.name) for tower in model.architecture.towers]
        if len(towers) == 1 or "/" in pattern:
            raise
        ways = " or ".join(f"{tower}/{pattern}" for tower in towers)
        why = f"{model.name} has several towers, and a site is of one of them"
        raise type(refusal)(f"site pattern {pattern!r}", why, f"write {ways}") from refusal


def _points(model: Model, tower: str | None) -> Iterator[tuple[str, list[Site]]]:
    """Every point of a tower, with its site in each layer."""
    depth = len(model.architecture.tower(tower).blocks)
    for point in POINTS.values():
        own = None if point.name == "logits" else tower
        layers = range(depth) if point.per_layer else [None]
        yield f"{own}/{point.name}" if own else point.name, [Site(point.name, x, tower=own) for x in layers]


def _row(model: Model, name: str, sites: list[Site]) -> dict[str, Any]:
    point = POINTS.get(sites[0].point)
    refusals = dict.fromkeys(filter(None, (_refusal(model, site) for site in sites)))
    return {
        "site": name,
        "axes": " ".join(point.axes) if point else "as the module returns it",
        "read": _layers(site.layer for site in sites if model.serves(site)),
        "edit": _layers(site.layer for site in sites if model.why_not_edit(site) is None),
        "what": point.definition if point else "the output or input of a module",
        "why_not": "; ".join(refusals),
    }


def _refusal(model: Model, site: Site) -> str | None:
    """The reason alone, without the site's name and the fix, so that equal reasons are equal texts."""
    try:
        model.tap(site)
    except MechanomeError as refusal:
        return refusal.why or refusal.what
    return model.why_not_edit(site)


def _layers(served: Iterable[int | None]) -> str:
    """Layers as ranges: `0-29`, `0,2,4`; `yes` for a site without layer; empty for none."""
    found = list(served)
    runs: list[list[int]] = []
    for layer in found:
        if layer is None:
            return "yes"
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def site_lines(model: Model, rows: Iterable[Mapping[str, Any]]) -> Iterator[Text]:
    """The rows for people: each definition once, with what is served of it, then the rest by reason."""
    yield Text(f"{model}\n", style="dim")
    missing: dict[str, list[str]] = {}
    meanings: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["read"]:
            meanings.setdefault((row["axes"], row["what"]), []).append(row)
        else:
            missing.setdefault(row["why_not"], []).append(row["site"])
    for (axes, what), same in meanings.items():
        lines: dict[str, list[str]] = {}
        for row in same:
            lines.setdefault(_served(row), []).append(row["site"])
        for served, names in lines.items():
            yield Text(", ".join(names), style="bold") + Text(f"  [{axes}]  {served}")
        yield Text(f"    {what}", style="dim")
    if missing:
        yield Text("\nnot served", style="bold")
    for why, names in missing.items():
        yield Text(f"  {', '.join(names)}") + Text(f"\n    {why}", style="dim")


def _served(row: Mapping[str, Any]) -> str:
    layers = "" if row["read"] == "yes" else f"layers {row['read']}, "
    if row["edit"] == row["read"]:
        return f"{layers}read and edit"
    return (
        f"{layers}read only: {row['why_not']}"
        if not row["edit"]
        else f"{layers}edit in {row['edit']}: {row['why_not']}"
    )
