"""Circuits of channels: scores and pruned runs against what plain PyTorch gives, and certificates of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import mechanome as mn
from mechanome.circuits.certification import certify
from mechanome.circuits.channels import SCORERS, Channels, channel_scores, prune_channels
from mechanome.circuits.effects import Components
from mechanome.circuits.layerwise import SelectEach
from mechanome.core import BadInput, ShapeMismatch, UnknownSite
from mechanome.core.errors import MechanomeError
from mechanome.zoo import SmallResNet, draw_shapes

STAGES = ("path:stages.0", "path:stages.1", "path:stages.2", "path:stages.3")


@cache
def small() -> tuple[mn.Model, Tensor, Tensor]:
    """An untrained small network with its images and labels."""
    torch.manual_seed(0)
    drawn = draw_shapes(6, 1)
    module = SmallResNet(8, (4, 6, 8, 10)).eval()
    return mn.load(module, example={"pixel_values": drawn.images[:1]}), drawn.images, drawn.labels


@cache
def named() -> tuple[mn.Model, Tensor]:
    """An untrained network whose stages are named sites."""
    torch.manual_seed(0)
    layout = mn.Layout("stages", feature_map=True, additive=False, unembed="classifier")
    images = draw_shapes(3, 1).images
    return mn.load(SmallResNet(5, (4, 8)).eval(), layout=layout, example={"pixel_values": images[:1]}), images


def stage_outputs(module: SmallResNet, images: Tensor, kept: list[Tensor] | None = None) -> tuple[list[Tensor], Tensor]:
    """Outputs of all stages and logits, with channels outside `kept` set to zero by hand."""
    x, found = module.stem(images), []
    for i, stage in enumerate(module.stages):
        x = stage(x)
        if kept is not None:
            x = x * kept[i][:, None, None]
        found.append(x)
    return found, module.classifier(x.mean((2, 3)))


def test_channels_know_widths_groups_and_names() -> None:
    model, images, _ = small()
    channels = Channels.of(model, STAGES, images)
    assert channels.widths == (4, 6, 8, 10) and len(channels.components) == 28
    assert channels.groups.tolist() == [0] * 4 + [1] * 6 + [2] * 8 + [3] * 10
    assert channels.components.name(4) == "path:stages.1 c0"
    with pytest.raises(UnknownSite):
        Channels.of(model, "path:stages.9", images)
    with pytest.raises(MechanomeError, match="no site was named"):
        Channels.of(model, [], images)


def test_activation_is_the_mean_size_of_a_feature_map() -> None:
    model, images, labels = small()
    found = channel_scores(Channels.of(model, STAGES, images), images, labels, "activation", batch=4)
    with torch.no_grad():
        expected = torch.cat([x.abs().mean((2, 3)) for x in stage_outputs(model.module, images)[0]], 1)
    assert torch.allclose(found.values, expected, atol=1e-6)


def test_relevance_is_activation_times_gradient_of_the_class() -> None:
    model, images, labels = small()
    found = channel_scores(Channels.of(model, STAGES, images), images, labels, "relevance", batch=4)
    outputs, logits = stage_outputs(model.module, images)
    gradients = torch.autograd.grad(logits.gather(1, labels[:, None]).sum(), outputs)
    expected = torch.cat([(x * g).sum((2, 3)) for x, g in zip(outputs, gradients)], 1).detach()
    assert torch.allclose(found.values, expected, atol=1e-5)
    # The classifier is linear in the last stage: its relevance adds up to the logit without the bias.
    logit = logits.gather(1, labels[:, None])[:, 0] - model.module.classifier.bias[labels]
    assert torch.allclose(found.values[:, 18:].sum(1), logit.detach(), atol=1e-4)


def test_rank_goes_from_0_to_1_within_each_site() -> None:
    model, images, labels = small()
    channels = Channels.of(model, STAGES, images)
    found = channel_scores(channels, images, labels, "rank").values
    sizes = channel_scores(channels, images, labels, "activation").values
    for group in range(4):
        here = channels.groups == group
        assert sorted(found[0, here].tolist()) == pytest.approx(torch.linspace(0, 1, int(here.sum())).tolist())
        assert torch.equal(found[:, here].argmax(1), sizes[:, here].argmax(1))


def test_pruned_logits_are_those_of_a_network_pruned_by_hand() -> None:
    model, images, _ = small()
    channels = Channels.of(model, STAGES, images)
    kept = torch.rand(5, 28, generator=torch.Generator().manual_seed(0)) < 0.6
    kept[0], kept[1] = True, False
    found = prune_channels(channels, images, kept, batch=7)
    with torch.no_grad():
        expected = torch.stack(
            [stage_outputs(model.module, images, [m.float() for m in row.split(channels.widths)])[1] for row in kept]
        )
        whole = model.module(images)
    assert found.shape == (5, 6, 8) and torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(found[0], whole, atol=1e-5)
    assert torch.allclose(found[1], model.module.classifier.bias.detach().expand(6, -1), atol=1e-6)


def test_named_sites_have_their_channels_last() -> None:
    model, images = named()
    sites = ["resid_post.0", "resid_post.1"]
    channels = Channels.of(model, sites, images)
    assert channels.widths == (4, 8)
    relevance = channel_scores(channels, images, torch.tensor([0, 3, 1]), "relevance").values
    assert relevance.shape == (3, 12) and bool((relevance != 0).any())
    whole = model.run({"pixel_values": images}).logits
    kept = torch.ones(2, 12, dtype=torch.bool)
    kept[1, 5] = False
    found = prune_channels(channels, images, kept)
    assert whole is not None and torch.allclose(found[0], whole, atol=1e-5)
    without = model.run({"pixel_values": images}, edits=[mn.Ablate("resid_post.1.n1", 0.0)]).logits
    assert without is not None and torch.allclose(found[1], without, atol=1e-5) and not torch.allclose(found[1], whole)


def test_circuits_of_channels_are_certified() -> None:
    model, images, _ = small()
    channels = Channels.of(model, STAGES, images)
    drawn = draw_shapes(30, 3)
    scores = channel_scores(channels, drawn.images, drawn.labels, "activation")
    found = certify(SelectEach(0.5, channels.groups), scores, quiet=True)
    sizes = [int(found.certified_in[channels.groups == g].sum()) for g in range(4)]
    assert all(0 < size <= most for size, most in zip(sizes, (2, 3, 4, 5)))
    assert found.names[0] == "path:stages.0 c0"


# A share of each group -------------------------------------------------------------------------------------------


def test_each_group_keeps_its_share() -> None:
    groups = torch.tensor([1, 0, 1, 0, 1, 1])
    components = Components(torch.ones(6, dtype=torch.bool))
    scores = torch.tensor([[5.0, -9.0, 4.0, 2.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    half = SelectEach(0.5, groups).sets(scores, components)
    assert half.tolist() == [[True, False, True, True, False, False], [True, True, True, False, False, False]]
    assert SelectEach(0.5, groups, "absolute").sets(scores, components)[0].tolist()[1] is True
    assert SelectEach(0.01, groups).sets(scores, components).sum(1).tolist() == [2, 2]
    assert bool(SelectEach(1.0, groups).sets(scores, components).all())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda c, x: SelectEach(0.0, c.groups), BadInput, "not above 0"),
        (lambda c, x: SelectEach(1.5, c.groups), BadInput, "not above 0"),
        (lambda c, x: SelectEach(0.5, c.groups, "best"), BadInput, "by="),
        (lambda c, x: SelectEach(0.5, c.groups.float()), ShapeMismatch, "give integers"),
        (lambda c, x: channel_scores(c, x, torch.zeros(2).long()), ShapeMismatch, "6 images"),
        (lambda c, x: channel_scores(c, x, torch.zeros(6).long(), "relevanze"), BadInput, "relevance"),
        (lambda c, x: prune_channels(c, x, torch.ones(2, 5, dtype=torch.bool)), ShapeMismatch, "28 channels"),
        (lambda c, x: prune_channels(c, x, torch.ones(2, 28)), ShapeMismatch, "give booleans"),
    ],
    ids=["none", "more-than-all", "rank", "float-groups", "labels", "scorer", "width", "floats"],
)
def test_what_does_not_fit_is_refused(make: Any, error: type, message: str) -> None:
    model, images, _ = small()
    with pytest.raises(error, match=message):
        make(Channels.of(model, STAGES, images), images)


def test_every_scorer_has_a_test() -> None:
    assert set(SCORERS) == {"activation", "relevance", "rank"}
