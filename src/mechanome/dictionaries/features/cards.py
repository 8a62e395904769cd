"""Feature cards: what each latent of a dictionary fires on, what it says, how often, and which others are like it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mechanome.core import BadInput, Table, UnknownName
from mechanome.core.files import atomic_write
from mechanome.core.formats import write_json
from mechanome.dictionaries.features.card import Example, FeatureCard
from mechanome.dictionaries.features.examples import Context, look
from mechanome.dictionaries.features.latent import Latent
from mechanome.dictionaries.features.logit_effects import logit_effects, similar, why_not
from mechanome.engine.asked import count
from mechanome.engine.inputs import token_strings
from mechanome.engine.plain import integers

if TYPE_CHECKING:
    from mechanome.activations import Activations
    from mechanome.activations.accumulators import Density
    from mechanome.dictionaries.dictionary import Dictionary
    from mechanome.engine import Model
    from mechanome.report import Page

GAP = "\u2026"
"""Stands for a token that the data do not hold."""


@dataclass(frozen=True, eq=False)
class FeatureCards:
    """Cards of some latents of a dictionary; made by `FeatureCards.of`.

    Args:
        dictionary: whose.
        cards: in the order asked for.
        fired: on how many rows each latent of the whole dictionary is active, `[latent]`.
        rows: seen.
        facts: names and values for the report: model, site, data.
        note: why there are no logit effects; empty where there are.
    """

    dictionary: Dictionary = field(repr=False)
    cards: tuple[FeatureCard, ...] = field(repr=False)
    fired: torch.Tensor = field(repr=False)
    rows: int
    facts: tuple[tuple[str, str], ...] = ()
    note: str = ""

    @classmethod
    def of(
        cls,
        dictionary: Dictionary,
        data: Iterable[Activations] | Any,
        model: Model | None = None,
        *,
        latents: Sequence[int] | None = None,
        tokenizer: Any = None,
        top: int = 8,
        drawn: int = 6,
        before: int = 12,
        after: int = 6,
        effects: int = 8,
        neighbors: int = 5,
        rows: int | None = None,
        seed: int = 0,
    ) -> FeatureCards:
        """Make cards.

        Args:
            dictionary: whose latents.
            data: a store, a stream of one epoch or a list of batches, with labels seq, pos and token; read twice.
            model: for logit effects and token texts.
            latents: which; None for all.
            tokenizer: for token texts, where there is no model; without either, tokens are shown by id.
            top, drawn: contexts of the strongest rows (one a text), and drawn evenly from all rows that fire.
            before, after: tokens around each.
            effects: tokens promoted and suppressed, each. neighbors: similar latents.
            rows: read so many; None for one epoch.
            seed: of the draw.

        Raises:
            BadInput: latents that do not exist, data that cannot be read twice, have no labels or no rows.
            ShapeMismatch, NotFinite, UnknownSite: rows that do not fit the dictionary.
        """
        width = dictionary.spec.width
        chosen = tuple(range(width)) if latents is None else tuple(integers(latents, "latents"))
        if not chosen or not all(0 <= i < width for i in chosen) or len(set(chosen)) != len(chosen):
            raise BadInput(f"latents {list(chosen)[:5]}", f"there are 0 to {width - 1}", "name different ones of these")
        counts = {"top": top, "drawn": drawn, "effects": effects, "neighbors": neighbors}
        for name, value in counts.items():
            count(name, value)
        found = look(dictionary, data, chosen, top=top, drawn=drawn, before=before, after=after, rows=rows, seed=seed)
        names = _Names(tokenizer if model is None else model.tokenizer)
        atoms, which = dictionary.atoms().detach().cpu(), torch.tensor(chosen)
        note = _no_effects(model, dictionary)
        said = iter(()) if note or model is None else logit_effects(model, atoms[which], effects)
        near = similar(atoms, which, neighbors)
        fired, strengths = found.density.fired, _Strengths(found.density)
        cards = []
        for latent, contexts in zip(chosen, found.contexts):
            up, up_by, down, down_by = next(said, (which[:0],) * 4)
            like, cosines = next(near)
            examples = tuple(_example(c, names, strengths, latent) for c in contexts)
            cards.append(
                FeatureCard(
                    latent,
                    found.rows,
                    int(fired[latent]),
                    max((e.value for e in examples), default=0.0),
                    examples,
                    tuple(zip(names.of(up.tolist()), up_by.tolist())),
                    tuple(zip(names.of(down.tolist()), down_by.tolist())),
                    tuple(zip(like.tolist(), cosines.tolist())),
                )
            )
        return cls(dictionary, tuple(cards), fired, found.rows, _facts(dictionary, model, found.rows), note)

    def __len__(self) -> int:
        return len(self.cards)

    def __iter__(self) -> Iterator[FeatureCard]:
        return iter(self.cards)

    def __getitem__(self, latent: int) -> FeatureCard:
        """The card of a latent, by its index in the dictionary.

        Raises:
            UnknownName: no card was made for it.
        """
        for card in self.cards:
            if card.latent == latent:
                return card
        raise UnknownName(f"latent {latent}", "no card was made for it", f"cards: {[c.latent for c in self.cards][:8]}")

    def latent(self, latent: int) -> Latent:
        """A latent as a handle for edits, which knows its largest activation.

        Raises:
            UnknownName: no card was made for it. BadInput: it is dead, so there is no activation to count in.
        """
        card = self[latent]
        if card.dead:
            raise BadInput(f"latent {latent}", f"it fired on none of {card.rows} rows", "use Latent(dictionary, index)")
        return Latent(self.dictionary, latent, maximum=card.maximum)

    @property
    def dead(self) -> tuple[int, ...]:
        """Latents of the whole dictionary that fired on no row."""
        return tuple((self.fired == 0).nonzero()[:, 0].tolist())

    def table(self) -> Table:
        """One line a card."""
        rows = [
            (
                c.latent,
                c.fired,
                c.density,
                c.maximum,
                " ".join(token for token, _ in c.promoted[:4]),
                c.examples[0].tokens[c.examples[0].at] if c.examples else "dead",
            )
            for c in self.cards
        ]
        return Table(["latent", "fired", "density", "maximum", "promotes", "strongest on"], rows, "features")

    def record(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "facts": dict(self.facts), "rows": self.rows, "width": self.dictionary.spec.width,
            "dead": list(self.dead), "note": self.note, "cards": [card.record() for card in self.cards],
        }  # fmt: skip

    def page(self, most: int = 60) -> Page:
        """One offline page; see `mechanome.dictionaries.features.page`.

        Args:
            most: cards on it; of more, every n-th by density is shown, and the page says so.
        """
        from mechanome.dictionaries.features.page import document

        return document(self, most)

    def save(self, path: str | os.PathLike[str], most: int = 60) -> None:
        """Write the page (`.html`) or the record (`.json`), whole or not at all.

        Raises:
            BadInput: another ending.
        """
        ending = Path(path).suffix
        if ending == ".json":
            write_json(path, self.record())
        elif ending == ".html":
            with atomic_write(path, "w") as handle:
                handle.write(self.page(most).html())
        else:
            raise BadInput(f"feature cards as '{ending}'", "there is no such form", "use .html or .json")

    def _repr_html_(self) -> str:
        return self.table().html()


class _Names:
    """Texts of tokens, each made once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.known: dict[int, str] = {}

    def of(self, ids: Iterable[int | None]) -> tuple[str, ...]:
        ids = list(ids)
        new = sorted({i for i in ids if i is not None and i not in self.known})
        self.known.update(zip(new, token_strings(self.tokenizer, new)))
        return tuple(GAP if i is None else self.known[i] for i in ids)


class _Strengths:
    """How strong an activation is among all of its latent."""

    def __init__(self, density: Density) -> None:
        self.counts, self.edges = density.counts.numpy(), density.edges.numpy()

    def below(self, latent: int, value: float) -> float:
        """Share of firing rows that are weaker, an estimate: those in lower bins, and half of those in the same one."""
        counts = self.counts[latent]
        own = min(max(int(np.searchsorted(self.edges, value, side="right")) - 1, 0), len(counts) - 1)
        return float((counts[:own].sum() + counts[own] / 2) / counts.sum())


def _example(c: Context, names: _Names, strengths: _Strengths, latent: int) -> Example:
    quantile = strengths.below(latent, c.value)
    return Example(c.drawn, c.value, quantile, c.seq, c.pos, names.of(c.tokens), c.values, c.at)


def _no_effects(model: Model | None, dictionary: Dictionary) -> str:
    if model is None:
        return "no model was given"
    sites = dictionary.spec.sites_out
    if len(sites) != 1:
        return "the dictionary does not say which one site it writes" if not sites else "it writes several sites"
    return why_not(model, sites[0]) or ""


def _facts(dictionary: Dictionary, model: Model | None, rows: int) -> tuple[tuple[str, str], ...]:
    spec = dictionary.spec
    model_fact = (("model", model.name),) if model is not None else ()
    return (
        *model_fact,
        ("site", ", ".join(spec.sites_out) or "not said"),
        ("architecture", spec.architecture),
        ("latents", str(spec.width)),
        ("rows read", str(rows)),
        *((name, str(value)) for name, value in spec.provenance.items() if isinstance(value, (str, int, float))),
    )
