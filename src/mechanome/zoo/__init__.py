"""Small models and their data, trained on the spot: for mechanisms whose cause is known.

from mechanome.zoo import draw_shapes, spurious_resnet

model = mn.load(spurious_resnet(seed=0), example={"pixel_values": draw_shapes(1).images})

Weights are kept in the user cache, by everything they depend on. Names are imported when first used.
"""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.zoo.kept import kept_weights
    from mechanome.zoo.redundant import (
        ObjectPrompts,
        RedundantRecipe,
        object_prompts,
        redundant_transformer,
        train_redundant,
    )
    from mechanome.zoo.resnet import SmallResNet
    from mechanome.zoo.shapes import CLASSES, SHIFTS, Shapes, draw_shapes, shifted_shapes
    from mechanome.zoo.spurious import Recipe, spurious_resnet, train_on_shapes

__all__ = [
    "CLASSES",
    "SHIFTS",
    "ObjectPrompts",
    "Recipe",
    "RedundantRecipe",
    "Shapes",
    "SmallResNet",
    "draw_shapes",
    "kept_weights",
    "object_prompts",
    "redundant_transformer",
    "shifted_shapes",
    "spurious_resnet",
    "train_on_shapes",
    "train_redundant",
]

offer(__name__)
