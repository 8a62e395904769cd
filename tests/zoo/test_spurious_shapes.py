"""Shapes on textured grounds, and the network that learns their cue: known frequencies, determinism, the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mechanome.core import BadInput, CorruptFile, ShapeMismatch
from mechanome.zoo import CLASSES, SHIFTS, Recipe, draw_shapes, shifted_shapes, spurious, spurious_resnet
from mechanome.zoo.kept import kept_weights
from mechanome.zoo.shapes import blurred
from mechanome.zoo.spurious import accuracy, train_on_shapes

TINY = Recipe(images=64, epochs=1)


def test_images_have_their_ranges_and_classes_in_turn() -> None:
    drawn = draw_shapes(80, 3)
    assert drawn.images.shape == (80, 3, 32, 32) and len(drawn) == 80
    assert float(drawn.images.min()) >= -1 and float(drawn.images.max()) <= 1
    assert torch.bincount(drawn.labels).tolist() == [10] * len(CLASSES)
    assert bool((drawn.of(2).labels == 2).all()) and len(drawn.of(2)) == 10
    assert len(set(draw_shapes(80, 3, balanced=False).labels.bincount().tolist())) > 1


def test_seeds_decide_everything() -> None:
    a, b, c = draw_shapes(20, 3), draw_shapes(20, 3), draw_shapes(20, 4)
    assert torch.equal(a.images, b.images) and torch.equal(a.grounds, b.grounds)
    assert not torch.equal(a.images, c.images)


@pytest.mark.parametrize(("ground", "expected"), [("usual", 0.8), ("random", 1 / 8), ("other", 0.0)])
def test_grounds_go_with_the_class_as_often_as_asked(ground: Any, expected: float) -> None:
    drawn = draw_shapes(4000, 0, ground=ground, size=8)
    assert float((drawn.grounds == drawn.labels).double().mean()) == pytest.approx(expected, abs=0.02)
    wrong = drawn.grounds[drawn.grounds != drawn.labels]
    assert float(torch.bincount(wrong, minlength=8).double().std() / len(wrong)) < 0.03


def test_gratings_are_told_by_direction_and_length() -> None:
    from mechanome.zoo.shapes import _grating

    kinds = torch.arange(8)
    waves = _grating(kinds, 32, torch.Generator().manual_seed(0))
    spectrum = torch.fft.fft2(waves.mean(1) - waves.mean((1, 2, 3))[:, None, None]).abs()
    peaks = [divmod(int(s[:, :17].argmax()), 17) for s in spectrum]
    assert len({(min(r, 32 - r), c, r > 16) for r, c in peaks}) == 8


def test_every_shape_is_drawn_differently() -> None:
    from mechanome.zoo.shapes import _inside

    masks = torch.stack([_inside(torch.tensor([i]), 32, torch.Generator().manual_seed(0))[0] for i in range(8)])
    areas = masks.float().mean((1, 2))
    assert float(areas.min()) > 0.02 and float(areas.max()) < 0.4
    overlap = [(a & b).sum() / (a | b).sum() for i, a in enumerate(masks) for b in masks[:i]]
    assert max(map(float, overlap)) < 0.92


@pytest.mark.parametrize("shift", sorted(SHIFTS))
def test_shifted_sets_change_what_they_say(shift: str) -> None:
    plain, moved = draw_shapes(160, 5), shifted_shapes(160, 5, shift)
    assert torch.equal(plain.labels, moved.labels) and moved.images.abs().max() <= 1
    same_ground = torch.equal(plain.grounds, moved.grounds)
    assert same_ground == (shift in ("blur", "noise"))
    assert not torch.allclose(plain.images, moved.images)
    rough = (moved.images - blurred(moved.images)).std() / (plain.images - blurred(plain.images)).std()
    assert {"blur": rough < 0.5, "noise": rough > 1.3}.get(shift, 0.9 < rough < 1.1)


def test_a_blur_keeps_what_is_even_and_the_mean_of_what_is_not() -> None:
    even = torch.full((1, 3, 12, 12), 0.3)
    assert torch.allclose(blurred(even), even, atol=1e-6)
    point = torch.zeros(1, 2, 21, 21)
    point[0, 0, 10, 10] = 1
    found = blurred(point, 1.0)
    assert float(found[0, 0].sum()) == pytest.approx(1, abs=1e-5) and float(found[0, 1].abs().max()) == 0
    assert float(found[0, 0, 10, 11] / found[0, 0, 10, 10]) == pytest.approx(0.6065, abs=1e-3)
    with pytest.raises(ShapeMismatch, match="four axes"):
        blurred(point[0])


def test_training_follows_from_its_seed() -> None:
    a, b, c = (train_on_shapes(seed, TINY, quiet=True) for seed in (0, 0, 1))
    first, same, other = (m.classifier.weight for m in (a, b, c))
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert not a.training and 0 <= accuracy(a, draw_shapes(50, 9)) <= 1


def test_the_network_is_trained_once_for_each_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHANOME_CACHE", str(tmp_path))
    trained: list[int] = []

    def train(seed: int, recipe: Recipe, *, quiet: bool = False) -> Any:
        trained.append(seed)
        return train_on_shapes(seed, recipe, quiet=quiet)

    monkeypatch.setattr(spurious, "train_on_shapes", train)
    one, again = spurious_resnet(0, TINY, quiet=True), spurious_resnet(0, TINY, quiet=True)
    assert trained == [0] and torch.equal(one.classifier.weight, again.classifier.weight) and not again.training
    spurious_resnet(1, TINY, quiet=True)
    spurious_resnet(0, Recipe(images=64, epochs=1, rate=1e-3), quiet=True)
    assert trained == [0, 1, 0]
    images = draw_shapes(8).images
    with torch.no_grad():
        assert torch.equal(one(images), again(images)), "running statistics of norms are kept, too"


def test_a_damaged_file_is_named_and_a_failed_training_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECHANOME_CACHE", str(tmp_path))

    def fail() -> dict[str, torch.Tensor]:
        raise RuntimeError("no power")

    with pytest.raises(RuntimeError):
        kept_weights("x", {"seed": 0}, fail)
    assert kept_weights("x", {"seed": 0}, lambda: {"w": torch.ones(2)})["w"].tolist() == [1, 1]
    file = next((tmp_path / "zoo").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(CorruptFile):
        kept_weights("x", {"seed": 0}, fail)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(BadInput, match="usual"):
        draw_shapes(4, ground="usuall")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="positive"):
        draw_shapes(0)
    with pytest.raises(BadInput, match="blur"):
        shifted_shapes(4, 0, "blurr")
