"""The page of feature cards: densities, latents at a glance, and a card each, in one file that opens offline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mechanome.core import BadInput
from mechanome.dictionaries.features.density_picture import DensityPicture
from mechanome.dictionaries.features.logit_effects import HOW
from mechanome.report import Choice, Line, Option, Page, Section, Sheet, Stack, Weights, number
from mechanome.report.rendering import share, visible

if TYPE_CHECKING:
    from mechanome.dictionaries.features.card import Example, FeatureCard
    from mechanome.dictionaries.features.cards import FeatureCards

_GLANCE = 4
"""Tokens of each kind in the line of a latent."""
_BEFORE, _AFTER = 5, 3
"""Tokens about the strongest in the line of a latent: so many fit beside the rest; its card has the whole context."""
_LONGEST = 24
"""Characters of a token on the page; the record has all."""


def document(cards: FeatureCards, most: int) -> Page:
    """The page.

    Args:
        cards: what was found. most: cards on the page.

    Raises:
        BadInput: room for none.
    """
    if most < 1:
        raise BadInput(f"most={most}", "a page needs a card", "use 60")
    shown = _shown(cards, most)
    width, dead = cards.dictionary.spec.width, len(cards.dead)
    alive = width - dead
    return Page(
        name=f"Features of {_where(cards)}",
        kicker=" \u00b7 ".join(("Mechanome", "features", _where(cards))),
        title=(f"{width:,} latents at {_where(cards)}",),
        subtitle=(f"{cards.rows:,} tokens read, {len(cards):,} cards made, {len(shown)} on this page",),
        verdict=(
            f"{alive:,} of {width:,} latents fire",
            alive > 0,
            (
                f"{dead:,} fired on none of the {cards.rows:,} tokens; on more text some of them might."
                if dead
                else f"Each fired on at least one of the {cards.rows:,} tokens.",
            ),
        ),
        story=(),
        sections=tuple(_sections(cards, shown)),
        measured=(
            (
                "The strongest contexts are the rows of largest activation, one a text. Drawn contexts are taken "
                "evenly from all rows on which the latent fires, by a lot that depends on row and latent alone.",
            ),
            (
                "The quantile of a context is the share of the latent's firing rows that are weaker, an estimate from "
                "bins of a quarter of an octave. Shading is the activation as a share of the latent's largest.",
            ),
            (f"Logit effects: {cards.note or HOW}.",),
            ("Similar latents are those whose atoms have the largest cosine.",),
        ),
        limits=_LIMITS,
        facts=cards.facts,
    )


_LIMITS: tuple[Line, ...] = (
    ("The strongest contexts show what a latent fires on most, not what it means when it fires weakly.",),
    ("A direct effect on the logits says nothing of what later blocks do with the latent.",),
    ("A latent that never fired here may fire on other text.",),
)


def _where(cards: FeatureCards) -> str:
    known = dict(cards.facts)
    return f"{known['site']} of {known['model']}" if "model" in known else known["site"]


def _shown(cards: FeatureCards, most: int) -> list[FeatureCard]:
    """All of them, or every n-th by density, which favors none; in the order of the dictionary."""
    if len(cards) <= most:
        return list(cards)
    alive = sorted((c for c in cards if not c.dead), key=lambda c: (-c.fired, c.latent))
    step = max(1.0, len(alive) / most)
    return sorted((alive[int(i * step)] for i in range(min(most, len(alive)))), key=lambda c: c.latent)


def _sections(cards: FeatureCards, shown: list[FeatureCard]) -> Iterator[Section]:
    if len(cards.dead) < cards.dictionary.spec.width:
        yield Section(
            "How often do latents fire?",
            ("All latents of the dictionary that fire at all, by the share of tokens on which they do.",),
            DensityPicture(cards.fired.tolist(), cards.rows),
            (f"{len(cards.dead):,} of {cards.dictionary.spec.width:,} latents never fired.",)
            if len(cards.dead)
            else (),
        )
    chosen = "" if len(shown) == len(cards) else f" {len(shown)} of {len(cards)}, every n-th by density."
    yield Section(
        "Latents at a glance",
        (f"One line a latent.{chosen} Its card is below.",),
        _glance(shown),
    )
    yield Section(
        "Cards",
        ("Choose a latent. Green is its activation, as a share of its largest.",),
        Choice("latent", [Option(str(c.latent), _card(c), _note(c)) for c in shown], cards.table()),
    )


def _glance(shown: list[FeatureCard]) -> Sheet:
    columns = (
        ("latent", ""),
        ("fires on", "share of tokens"),
        ("largest", "largest activation"),
        ("promotes", "tokens, by way of the stream alone"),
        ("strongest context", ""),
    )
    rows = [
        [
            str(c.latent),
            "dead" if c.dead else share(c.density, 3),
            number(c.maximum),
            "  ".join(visible(_cut(token)) for token, _ in c.promoted[:_GLANCE]),
            _context(c.examples[0], c.maximum, near=True) if c.examples else "",
        ]
        for c in shown
    ]
    return Sheet(columns, rows, muted=[i for i, c in enumerate(shown) if c.dead])


def _note(card: FeatureCard) -> str:
    if card.dead:
        return f"Latent {card.latent} is dead: it fired on none of {card.rows:,} tokens."
    return (
        f"Latent {card.latent} fires on {card.fired:,} of {card.rows:,} tokens ({share(card.density, 3)}), at most "
        f"{number(card.maximum)}."
    )


def _card(card: FeatureCard) -> Stack:
    parts = []
    if card.examples:
        columns = (
            ("activation", "at the strongest token, or at the one that was drawn"),
            ("quantile", "share of its firing tokens that are weaker, an estimate"),
            ("", "strongest, or drawn evenly from all tokens on which it fires"),
            ("context", ""),
        )
        rows = [
            [number(e.value), share(e.quantile), "drawn" if e.drawn else "strongest", _context(e, card.maximum)]
            for e in card.examples
        ]
        parts.append(Sheet(columns, rows))
    if card.promoted:
        said = (("promotes", "tokens, by way of the stream alone"), ("", ""), ("suppresses", ""), ("", ""))
        pairs = zip(card.promoted, card.suppressed)
        parts.append(
            Sheet(said, [[visible(_cut(a)), number(x), visible(_cut(b)), number(y)] for (a, x), (b, y) in pairs])
        )
    near = [[str(latent), number(cosine)] for latent, cosine in card.similar]
    parts.append(Sheet((("similar latent", "by its atom"), ("cosine", "")), near))
    return Stack(parts)


def _cut(token: str) -> str:
    """A token at a length that leaves room for others, such as the rules that separate rows of a table."""
    return token if len(token) <= _LONGEST else f"{token[: _LONGEST - 1]}\u2026"


def _context(example: Example, maximum: float, near: bool = False) -> Weights:
    """The context, shaded by activation; `near`, only what is about its strongest token."""
    part = slice(max(0, example.at - _BEFORE), example.at + _AFTER + 1) if near else slice(None)
    return Weights(
        [_cut(token) for token in example.tokens[part]], [max(0.0, v) / maximum for v in example.values[part]]
    )
