"""A unit's card: what it detects, what it writes, and how far that reading can be trusted.

The joint sign of a unit is free; a card turns it so that the token it moves most is promoted, and gates are turned with
it. A card shows what a unit would do to the logits directly, and where it is on. It does not show that the model uses
it: that is what `sca` in ablation mode measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from mechanome.circuits.native.contexts import Context, contexts
from mechanome.circuits.native.units import SIDES, MLPUnits
from mechanome.circuits.native.vocabulary import Vocabulary, kurtosis
from mechanome.core import Table
from mechanome.engine.inputs import Inputs
from mechanome.report import Page, Section, Sheet, Weights, number

Scored = tuple[tuple[str, float], ...]
"""Tokens with their scores, strongest first."""


@dataclass(frozen=True)
class UnitCard:
    """What is known of one unit.

    Args:
        name: such as "unit 12 of layer 5".
        model: its id.
        side: a row of `mechanome.circuits.native.SIDES`.
        strength: its singular value. rank: how many units of its layer are stronger.
        determined: whether its direction is unique: no neighbor is within 1 % of its strength.
        promotes, suppresses: tokens by what the unit writes (write side) or by how far they lie along its detector.
        opens, closes: contexts with the largest and the smallest gates; empty without a text.
        kurtosis: of its scores over the vocabulary. coherence: mean cosine of the ten tokens promoted most.
        notes: what is an estimate, and why.
    """

    name: str
    model: str
    side: str
    strength: float
    rank: int
    determined: bool
    promotes: Scored = field(repr=False)
    suppresses: Scored = field(repr=False)
    opens: tuple[Context, ...] = field(repr=False, default=())
    closes: tuple[Context, ...] = field(repr=False, default=())
    kurtosis: float = 0.0
    coherence: float = 0.0
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """What it writes and what it detects, for the terminal."""
        does, undoes = _WORDS[self.side]
        rows: list[tuple[str, str, float]] = [
            *((does, repr(token), score) for token, score in self.promotes),
            *((undoes, repr(token), score) for token, score in self.suppresses),
            *(("on at", context.text, context.gate) for context in self.opens),
            *(("reversed at", context.text, context.gate) for context in self.closes),
        ]
        said = "" if self.determined else ", direction not unique"
        return Table(("", "token or context", "score"), rows, f"{self.name}, {self.model}: {self.strength:.3g}{said}")

    def page(self) -> Page:
        """The card as a page that opens offline."""
        does, undoes = _WORDS[self.side]
        sure = (
            "Its direction is unique." if self.determined else "A neighbor is as strong: its direction is not unique."
        )
        pairs = [
            [*_cells(self.promotes, i), *_cells(self.suppresses, i)]
            for i in range(max(len(self.promotes), len(self.suppresses)))
        ]
        columns = ((does, ""), ("score", "against the mean of all tokens"), (undoes, ""), ("score", ""))
        lead = (_READ[self.side],)
        sections = [Section("Tokens", lead, Sheet(columns, pairs))]
        if self.opens or self.closes:
            limit = max(abs(g) for context in (*self.opens, *self.closes) for g in context.gates)
            rows: list[list[str | Weights]] = [
                [number(context.gate), Weights(context.tokens, [g * sign / limit for g in context.gates])]
                for sign, some in ((1.0, self.opens), (-1.0, self.closes))
                for context in some
            ]
            lead = (
                "The places of the text where the gate is most open, at most one a row of text; shades are the gate.",
            )
            sections.append(Section("Contexts", lead, Sheet((("gate", ""), ("text", "")), rows)))
        facts = (
            ("model", self.model),
            ("weight", SIDES[self.side]),
            ("strength", number(self.strength)),
            ("stronger units in its layer", str(self.rank)),
            ("excess kurtosis over the vocabulary", number(self.kurtosis)),
            ("coherence of its ten first tokens", number(self.coherence)),
        )
        return Page(
            name=f"{self.name}, {self.model}",
            kicker="Mechanome \u00b7 unit card",
            title=(self.name,),
            subtitle=(f"{SIDES[self.side]} of {self.model}",),
            verdict=("unique" if self.determined else "not unique", self.determined, (sure,)),
            story=(),
            sections=sections,
            measured=tuple((note,) for note in (_METHOD, *self.notes)),
            limits=((_LIMIT,),),
            facts=facts,
        )

    def html(self) -> str:
        """The page as one document."""
        return self.page().html()

    def _repr_html_(self) -> str:
        return self.table().html()


_WORDS = {
    "write": ("promotes", "suppresses"),
    "read": ("detects", "detects the opposite of"),
    "gate": ("is opened by", "is closed by"),
}
_READ = {
    "write": "Tokens whose logits the unit raises and lowers most, by way of the stream alone.",
    "read": "Tokens whose entries lie farthest along what the unit detects, and farthest against it.",
    "gate": "Tokens whose entries lie farthest along what the unit detects, and farthest against it.",
}
_METHOD = (
    "The unit is a pair of singular vectors of the weight, so all units together are the weight. The sign of a pair is "
    "free: it is turned so that the token with the strongest score is promoted."
)
_LIMIT = (
    "Tokens show the direct way to the logits and contexts show where the unit is on; whether the model uses it is "
    "measured by taking it out."
)


def _cells(scored: Scored, i: int) -> list[str]:
    return [repr(scored[i][0]), number(scored[i][1])] if i < len(scored) else ["", ""]


def unit_cards(
    units: MLPUnits,
    layer: int,
    chosen: Sequence[int],
    corpus: Inputs | None = None,
    k: int = 8,
    *,
    quiet: bool = False,
) -> list[UnitCard]:
    """Cards of some units of a layer.

    Args:
        units: of either side. layer: which. chosen: indices of units.
        corpus: text to find contexts in; None for none.
        k: tokens on each side, and contexts.
        quiet: no progress line.

    Raises:
        UnknownName, BadInput: units that do not exist. NotServed: a model without a vocabulary.
    """
    index = units.chosen((layer, i) for i in chosen)[layer]
    vocabulary = Vocabulary.of(units.model)
    part = units[layer].take(index)
    directions = part.right if units.side == "write" else part.left
    scores = (vocabulary.promoted if units.side == "write" else vocabulary.along)(directions)
    turn = scores.gather(1, scores.abs().argmax(1, keepdim=True)).sign()
    scores = scores * turn
    alike, peaked = vocabulary.coherence(scores, min(10, scores.shape[1])), kurtosis(scores)
    places = [((), ())] * len(index) if corpus is None else contexts(units, layer, index, corpus, k, quiet=quiet)
    cards = []
    for row, unit in enumerate(index):
        sides = [tuple(places[row][0]), tuple(places[row][1])]
        if float(turn[row]) < 0:
            sides = [tuple(map(_negated, some)) for some in reversed(sides)]
        up, down = (_scored(vocabulary, sign * scores[row], sign, k) for sign in (1.0, -1.0))
        cards.append(
            UnitCard(
                f"unit {unit} of layer {layer}",
                units.model.name,
                units.side,
                float(part.values[row]),
                int((units[layer].values > part.values[row]).sum()),
                bool(units[layer].unique[unit]),
                up,
                down,
                sides[0],
                sides[1],
                float(peaked[row]),
                float(alike[row]),
                (f"The reading is an estimate: {vocabulary.estimate}.",) if vocabulary.estimate else (),
            )
        )
    return cards


def _scored(vocabulary: Vocabulary, scores: Tensor, sign: float, k: int) -> Scored:
    best = scores.topk(min(k, len(scores)))
    return tuple(zip(vocabulary.tokens(best.indices.tolist()), (sign * v for v in best.values.tolist())))


def _negated(context: Context) -> Context:
    return replace(context, gate=-context.gate, gates=tuple(-g for g in context.gates))
