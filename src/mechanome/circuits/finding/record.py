"""A discovery as plain data: every number under the name a reader of the file would look for."""

from __future__ import annotations

from typing import Any

from mechanome.circuits.certification import Certificate
from mechanome.circuits.finding.discovery import Discovery
from mechanome.circuits.finding.measuring import ENOUGH, Half
from mechanome.circuits.finding.plainly import interval_record, measured_record
from mechanome.circuits.finding.rows import rows
from mechanome.circuits.screening import Screened
from mechanome.core import plain


def record(d: Discovery) -> dict[str, Any]:
    """Everything, by name, as a file gives it back."""
    source, held = d.model.source, d.measures.held_out.own
    found = {
        "format": "mechanome-circuit-discovery",
        "version": 1,
        "verdict": d.verdict,
        "needed": ENOUGH,
        "model": {"name": d.model.name} if source is None else vars(source),
        "task": {"name": d.halves.finding.name, "metric": d.halves.finding.metric},
        "settings": d.settings.record(),
        "examples": d.halves.record(),
        "graph": {"edges": d.graph.n_edges, "sources": d.graph.shape[0], "targets": d.graph.shape[1]},
        "metric": {"model": float(held.clean.double().mean()), "empty_circuit": float(held.empty.double().mean())},
        "circuit": {
            "chosen": d.measures.chosen.size,
            "edges": len(d.circuit),
            "share": d.circuit.share,
            "sources": int(d.circuit.used.sum()),
            "heads": d.heads,
            "parts": [vars(row) for row in rows(d)],
        },
        "finding": {name: measured_record(pair[0]) for name, pair in d.properties.items()},
        "held_out": {name: measured_record(pair[1]) for name, pair in d.properties.items()},
        "without": {name: measured_record(value) for name, value in d.without.items()},
        "curves": {"finding": _curve(d.measures.finding), "held_out": _curve(d.measures.held_out)},
        "screening": None if d.ranked.screened is None else _screening(d, d.ranked.screened),
        "stability": None if d.stability is None else d.stability.record(),
        "certificate": None if d.certificate is None else certificate_record(d.certificate),
        "units": None if d.carriers is None else d.carriers.record(),
        "attention": {name: vars(look) for name, look in d.looks.items()},
        "notes": list(d.notes),
        "versions": dict(d.versions),
        "seconds": {name: round(value, 3) for name, value in d.seconds.items()},
    }
    return dict(plain(found))


def _curve(half: Half) -> dict[str, Any] | None:
    if half.curve is None:
        return None
    return {
        "sizes": list(half.curve.sizes),
        "faithfulness": [measured_record(found) for found in half.curve.faithfulness],
        "cpr": measured_record(half.curve.cpr),
        "cmd": measured_record(half.curve.cmd),
    }


def certificate_record(found: Certificate) -> dict[str, Any]:
    """What is certified to be in; `certificate.json` has every part."""
    named = zip(found.names, found.certified_in.tolist(), found.votes.tolist(), found.bounds.lower.tolist())
    return {
        **found.counts(),
        "radius": found.level.promised,
        "statement": found.statement,
        "parts": [{"name": name, "votes": votes, "above": lower} for name, kept, votes, lower in named if kept],
        "notes": list(found.notes),
    }


def _screening(d: Discovery, s: Screened) -> dict[str, Any]:
    return {
        "estimate": s.estimate.method,
        "verified": int(s.verified.sum()),
        "of": int(s.estimate.known.sum()),
        "rank_correlation": None if s.agreement is None else s.agreement.estimate,
        "rank_correlation_interval": interval_record(s.agreement),
        "signs_changed": s.signs_changed,
        "pairs_reordered": s.reordered,
        "overlap_with_estimate_alone": None if d.overlap is None else d.overlap.value,
    }
