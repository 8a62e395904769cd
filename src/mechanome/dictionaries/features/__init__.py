"""Features: cards that show what latents fire on and say, and handles that change them."""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.dictionaries.features.card import Example, FeatureCard
    from mechanome.dictionaries.features.cards import FeatureCards
    from mechanome.dictionaries.features.latent import Latent
    from mechanome.dictionaries.features.logit_effects import logit_effects, similar
    from mechanome.dictionaries.features.special_tokens import special_positions

__all__ = ["Example", "FeatureCard", "FeatureCards", "Latent", "logit_effects", "similar", "special_positions"]

offer(__name__)
