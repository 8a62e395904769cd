"""The parts that bring the answer back: attention heads, MLPs and other mixers, with what each does.

Every part has two exact effects. `restores`: put its value from the prompt into the counterfactual's run, and this
share of the preference returns. `breaks`: put its value from the counterfactual into the prompt's run, and this share
is lost. A part that restores but does not break has stand-ins; one that breaks but does not restore needs others. The
parts listed are those with the largest mean of the two, among the parts that restore most.

One finding is set aside: in many models the first block's MLP merely completes the embedding, so replacing its output
is as good as replacing the token. Such an `echo` of the input is listed, but explains nothing, and is kept out of the
verification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from mechanome.core import TooFewRows
from mechanome.engine import Batch, Model, Site
from mechanome.explain.effects import TOKENS, Grid
from mechanome.explain.pair import Pair
from mechanome.explain.tokens import whole

TOP = 8
"""Parts that an explanation names at most, and less than half of the parts of one kind."""
CANDIDATES = 16
"""Parts whose `breaks` is measured."""
LEAST = 0.05
"""A part is named if the mean of both effects reaches this; if none does, the strongest one is named all the same."""
ECHO = 0.9
"""A part of the first block that alone restores and breaks this share is an echo of the input."""
ATTENDED = 3
"""Tokens listed that a head attends to."""


@dataclass(frozen=True)
class Kind:
    """One kind of part.

    Args:
        name: in words.
        point: its output.
        axis: "head", or "layer" for one part a layer.
    """

    name: str
    point: str
    axis: str


KINDS = (Kind("head", "z", "head"), Kind("MLP", "mlp_out", "layer"), Kind("mixer", "mixer_out", "layer"))
"""Every kind of part that explanations look at; what a model does not have is left out."""
_NAMES = {kind.point: kind.name for kind in KINDS}


@dataclass(frozen=True)
class Component:
    """One part and its exact effects, as shares of the gap between prompt and counterfactual.

    Args:
        site: its output, such as `z.23.h4` or `mlp_out.7`.
        restores: share that returns when only it comes from the prompt.
        breaks: share that is lost when only it comes from the counterfactual.
        position: where it restores most, in tokens.
        restores_there: share that returns when it comes from the prompt at that position only.
        echo: whether it is of the first block, and replacing it is as good as replacing the swapped tokens.
        attends: for a head, what the query at `position` attends to in the prompt: its row of the pattern, `[pos]`.
    """

    site: Site
    restores: float
    breaks: float
    position: int
    restores_there: float
    echo: bool = False
    attends: Tensor | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """In words, such as `head 23.4`."""
        return name_of(self.site)

    @property
    def attended(self) -> tuple[tuple[int, float], ...]:
        """The positions a head attends to most, with their weights."""
        return () if self.attends is None else most_attended(self.attends, self.position)


def most_attended(row: Tensor, query: int) -> tuple[tuple[int, float], ...]:
    """The positions with the largest weights in a row of a pattern, `[pos]`, with these; none behind the query."""
    weights, places = row.topk(min(ATTENDED, query + 1))
    return tuple(zip(places.tolist(), weights.tolist()))


def name_of(site: Site) -> str:
    """A part in words: `head 23.4` (layer, head) or `MLP 7` (layer)."""
    return f"{_NAMES[site.point]} {site.layer}{'' if site.head is None else f'.{site.head}'}"


def cut_remark(cut: int) -> str:
    """That the list of parts was cut, in words."""
    more = "1 more part reaches" if cut == 1 else f"{cut} more parts reach"
    return (
        f"the list of parts was cut: {more} the {whole(LEAST)} from which parts are named; at most {TOP} are listed, "
        "and less than half of the parts of one kind"
    )


def every_site(grids: Sequence[Grid]) -> list[Site]:
    """All parts of the grids, measured or not."""
    return [_site(grid, i, j) for grid in grids for i in range(len(grid.layers)) for j in range(grid.shares.shape[1])]


@dataclass(frozen=True)
class Ranking:
    """The parts that restore most, with both effects, and which of them an explanation names.

    Args:
        restored: share that each measured part restores.
        broken: share that each candidate breaks.
        echoes: candidates that merely repeat the input.
        named: the others that are named, strongest first.
        cut: further candidates that are strong enough to be named, but beyond the number that is.
    """

    restored: Mapping[Site, float] = field(repr=False)
    broken: Mapping[Site, float] = field(repr=False)
    echoes: tuple[Site, ...]
    named: tuple[Site, ...]
    cut: int = 0


def ranking(pair: Pair, grids: Sequence[Grid]) -> Ranking:
    """Measure what the parts that restore most break, and choose which are named.

    Args:
        pair: both runs, holding every part.
        grids: what each part restores, one grid a kind.
    """
    restored = {
        _site(grid, i, j): float(grid.shares[i, j])
        for grid in grids
        for i, j in (~grid.shares.isnan()).nonzero().tolist()
    }
    candidates = sorted(restored, key=lambda site: -restored[site])[:CANDIDATES]
    without = pair.removed([[(site, None)] for site in candidates], "parts")
    broken = dict(zip(candidates, (1 - pair.question.restored(without)).tolist()))
    strength = {site: (restored[site] + broken[site]) / 2 for site in candidates}
    echoes = [s for s in candidates if s.layer == 0 and min(restored[s], broken[s]) >= ECHO]
    order = sorted((s for s in candidates if s not in echoes), key=lambda site: -strength[site])
    named = _named(order, strength, grids, echoes)
    cut = sum(strength[site] >= LEAST for site in order if site not in named)
    return Ranking(restored, broken, tuple(echoes), tuple(named), cut)


def components(pair: Pair, ranked: Ranking) -> tuple[Component, ...]:
    """The parts to name: echoes, then the others, strongest first.

    Args:
        pair: both runs, holding every part.
        ranked: which parts, with their effects.

    Raises:
        TooFewRows: none is named, for no part has others of its kind.
    """
    if not ranked.named:
        why = "none has enough others of its kind to compare it with"
        raise TooFewRows(f"the parts of {pair.model.name}", why, "explain a model with more layers or heads")
    listed = [*ranked.echoes, *ranked.named]
    places = _places(pair, listed)
    heads = [(site, places[site][0]) for site in listed if site.head is not None]
    rows = attention(pair.model, pair.question.clean, heads)
    return tuple(
        Component(s, ranked.restored[s], ranked.broken[s], *places[s], echo=s in ranked.echoes, attends=rows.get(s))
        for s in listed
    )


def _site(grid: Grid, row: int, column: int) -> Site:
    return Site(grid.point, grid.layers[row], head=column if grid.axis == "head" else None)


def _named(
    order: Sequence[Site], strength: dict[Site, float], grids: Sequence[Grid], echoes: Sequence[Site] = ()
) -> list[Site]:
    """The first of `order`, less than half of each kind, so that as many others are left to compare with.

    Echoes are no such others. The only other part of its kind is not named: there is nothing to compare it with.
    """
    free = {grid.point: grid.shares.numel() - sum(site.point == grid.point for site in echoes) for grid in grids}
    room = {point: max(int(n > 1), (n - 1) // 2) for point, n in free.items()}
    chosen: list[Site] = []
    for site in order:
        if room[site.point] and len(chosen) < TOP and (strength[site] >= LEAST or not chosen):
            room[site.point] -= 1
            chosen.append(site)
    return chosen


def _places(pair: Pair, sites: Sequence[Site]) -> dict[Site, tuple[int, float]]:
    """Where each part restores most, and how much, from exact runs; a long prompt tries the likeliest positions."""
    question = pair.question
    positions = list(range(question.differing[0], question.length))
    most = max(2, TOKENS // (len(positions) * len(sites)))
    tried = {s: positions if len(positions) <= most else _likeliest(pair, s, positions, most) for s in sites}
    cells = [(site, position) for site in sites for position in tried[site]]
    logits = pair.restored([[(site, [position])] for site, position in cells], "positions")
    best: dict[Site, tuple[int, float]] = {}
    for (site, position), share in zip(cells, question.restored(logits).tolist()):
        if site not in best or share > best[site][1]:
            best[site] = (position, share)
    return best


def _likeliest(pair: Pair, site: Site, positions: Sequence[int], most: int) -> list[int]:
    """The positions with the largest gradient estimate, in order."""
    gradients = pair.model.grad(pair.question.metric, pair.question.corrupted, [site.whole])
    change = gradients[site.whole] * (pair.clean[site.whole] - pair.corrupted[site.whole])
    change = change if site.head is None else change[:, :, site.head]
    estimate = change.sum(-1)[0, list(positions)]
    return [positions[i] for i in sorted(estimate.topk(most).indices.tolist())]


def attention(model: Model, prompt: Batch, queries: Sequence[tuple[Site, int]]) -> dict[Site, Tensor]:
    """Per head, the row of its attention pattern at the query given, `[pos]`; only of heads whose pattern is served.

    Args:
        model: an opened model.
        prompt: one row.
        queries: heads, each with a position.
    """
    served = [(site, q) for site, q in queries if model.serves(f"pattern.{site.layer}")]
    if not served:
        return {}
    wanted = sorted({f"pattern.{site.layer}" for site, _ in served})
    run = model.run(prompt, capture=wanted, logits=False)
    return {s: run[f"pattern.{s.layer}"][0, s.head, q].float().cpu() for s, q in served}
