"""Sections of the report page about the circuit of the prompt: how few edges are enough, and which they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from markupsafe import Markup

from mechanome.circuits import CircuitPicture
from mechanome.circuits.certification import Certificate, certificate_section
from mechanome.circuits.finding.unit_graph import UNITS
from mechanome.circuits.finding.unit_words import section
from mechanome.core import Table
from mechanome.explain import circuit_words as words
from mechanome.explain.circuit import ENOUGH, STEPS, PromptCircuit
from mechanome.explain.curve import Curve
from mechanome.explain.tokens import quoted
from mechanome.explain.units import PromptUnits
from mechanome.report import Line, Meter, Picture, Section, Sheet, Stack, number

_CERTIFIED = 20
"""Certified parts that are listed; the table behind has all."""
_DRAWN = 150
"""Edges that are drawn and listed, the strongest first; the record has all."""


def circuit(c: PromptCircuit) -> Iterator[Section]:
    """The curve, then the circuit."""
    yield Section(
        "How few edges are enough: the circuit of this prompt",
        (
            "An edge leads from one part to what another reads. In a circuit's run only its own edges carry what comes "
            f"of the prompt; all others carry what they carry after the counterfactual. {words.NEAR}.",
        ),
        _curve(c),
        _sentences(words.finding(c), words.dips(c), words.rankings(c)),
        (
            f"Edges are ranked by {STEPS} steps of integrated gradients between both prompts (EAP-IG), an estimate. "
            "Each circuit, the first edges of a ranking, is then run: NDF is exact. "
            + (
                "At each size the ranking whose circuit is best on this prompt wins (best of N, query circuits, arXiv "
                "2509.24808)."
                if c.samples
                else "(Query circuits, arXiv 2509.24808, with the prompt's own ranking alone.)"
            ),
        ),
        (
            "That a circuit brings the preference about does not show that the model uses it alone, nor that it is the "
            "smallest there is: only the first edges of a few rankings were tried.",
        ),
    )
    yield Section(
        "The smallest of these circuits" if c.enough else "The nearest of these circuits",
        (
            "The embedding is below, the logits above, one row a layer. Green: without this edge the preference would "
            "be lower; orange: higher; the stronger, the darker. Hover over a part for what it does alone, and where a "
            "head looks.",
        ),
        _Drawn.of(c),
        (f"Listed are the {_DRAWN} strongest of {len(c.circuit):,} edges.",) if len(c.circuit) > _DRAWN else (),
        (
            "Colors: what the preference would lose without the edge, an estimate in logits. What a part does alone: "
            "the exact effects above. Where a head looks: from the position at which it acts, if it is one of the "
            "named parts, else from the last.",
        ),
        ("An edge says that something is passed on, not what. Edges that stand in for each other may be left out.",),
    )

    if c.certificate is not None:
        yield certificate(c.certificate, "edges", words.certified(c))


def certificate(proof: Certificate, things: str, finding: str = "") -> Section:
    """A certificate over prompts.

    Args:
        proof: the certificate. things: what it is of. finding: what it says here; as it says itself where empty.
    """
    made = certificate_section(proof, _CERTIFIED)
    return replace(
        made, title=f"Which {things} hang on no single prompt", finding=(finding,) if finding else made.finding
    )


def units(found: PromptUnits) -> Iterator[Section]:
    """The neurons or singular units of the prompt, and their certificate."""
    yield section(found.carriers, "this prompt", "what it carries after the counterfactual")
    if found.certificate is not None:
        yield certificate(found.certificate, UNITS[found.carriers.kind])


def _sentences(*given: str) -> Line:
    return tuple(f"{sentence} " for sentence in given if sentence)


def _curve(c: PromptCircuit) -> Picture:
    total = c.found.graph.n_edges
    tips = [
        f"{n:,} edges ({words.share(n / total)}): NDF {number(value)}" + (f", ranking of {quoted(who)}" if who else "")
        for i, (n, value) in enumerate(zip(c.found.budgets, c.found.ndf.tolist()))
        for who in [c.proposer(i)]
    ]
    curve = Curve(c.found.budgets, c.found.ndf.tolist(), ENOUGH, tips, c.curve())
    return Stack([curve, _paraphrases(c)]) if c.samples else curve


def _paraphrases(c: PromptCircuit) -> Sheet:
    """What the circuit keeps on each paraphrase."""
    own = c.proposer(c.place)
    return Sheet(
        (
            ("paraphrase", "a prompt of the same behavior"),
            ("compared with", "its counterfactual"),
            ("NDF there", "of the circuit below, on this paraphrase"),
            ("", "whether its ranking gave the circuit, so that this is no test"),
        ),
        [(s.prompt, s.counterfactual, Meter(s.ndf), "gave the circuit" if s.prompt == own else "") for s in c.samples],
    )


@dataclass(frozen=True)
class _Drawn:
    """A drawing whose table holds what is drawn.

    Args:
        picture: the drawing; a score is what patching the edge adds to the preference, so a loss is its opposite.
    """

    picture: CircuitPicture

    @classmethod
    def of(cls, c: PromptCircuit) -> _Drawn:
        """The circuit that is shown."""
        return cls(CircuitPicture(c.circuit, c.found.scores, _DRAWN, dict(c.tips)))

    def html(self) -> Markup:
        """The drawing."""
        return self.picture.html()

    def table(self) -> Table:
        """The edges drawn, strongest first."""
        graph = self.picture.circuit.graph
        rows = [(graph.sources[i], graph.targets[j], -(score or 0.0)) for i, j, score in self.picture.drawn]
        return Table(["from", "to", "preference lost without it (logits, an estimate)"], rows)
