"""Backward rules: the forward pass keeps every value, the backward pass treats some parts as constant.

| rule | what the backward pass does |
|---|---|
| `detach_norm` | norms are linear: their scale (and LayerNorm's deviation) counts as constant |
| `detach_pattern` | attention probabilities count as constant |
| `half_gate` | a gated MLP passes half of its gradient to each factor, as a product of two inputs should |
| `linear_act` | activation functions are `x * constant`: the constant is their output over their input |

Together they make relevance propagation (LRP, RelP): the network becomes locally linear, so that gradient times
input sums to the output up to biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mechanome.core.errors import NotServed, UnknownName, nearest
from mechanome.engine.parameters import effective_gain, epsilon
from mechanome.engine.plan import Bound, Call, Plan
from mechanome.engine.run import place
from mechanome.engine.site import Site
from mechanome.engine.taps import install
from mechanome.engine.views import Plain

if TYPE_CHECKING:
    from mechanome.engine.model import Model


def value_of(value: Tensor, gradient: Tensor) -> Tensor:
    """A tensor with the value of one and the gradient of another."""
    return value.detach() + (gradient - gradient.detach())


def _is_norm(module: nn.Module) -> bool:
    gain = getattr(module, "weight", None)
    return "Norm" in type(module).__name__ and isinstance(gain, Tensor) and gain.dim() == 1


def _norms(model: Model) -> Iterator[nn.Module]:
    for _, module in model.module.named_modules():
        if _is_norm(module) and not isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)):
            yield module


@dataclass
class _LinearNorm:
    """A norm whose scale counts as constant: remembers its input, replaces the gradient of its output."""

    norm: nn.Module
    gain: Tensor
    seen: list[Tensor] = field(default_factory=list)

    def remember(self, x: Tensor, call: Call) -> None:
        self.seen.append(x)

    def linear(self, out: Tensor, call: Call) -> Tensor:
        x = self.seen.pop()
        centred = x - x.mean(-1, keepdim=True) if isinstance(self.norm, nn.LayerNorm) else x
        scale = (centred.pow(2).mean(-1, keepdim=True) + epsilon(self.norm)).rsqrt()
        linear = centred * scale.detach() * self.gain
        bias = getattr(self.norm, "bias", None)
        rest = out.detach() - linear.detach() - (0.0 if bias is None else bias.detach())
        if not bool(rest.abs().max() <= 0.02 * out.detach().abs().max()):
            raise NotServed(
                "rule 'detach_norm'",
                f"{type(self.norm).__name__} is neither a layer norm nor a root-mean-square norm",
                "leave the rule out",
            )
        return value_of(out, linear)


@dataclass
class _LinearActivation:
    """An activation function as a constant factor of its input: output over input."""

    module: nn.Module
    calls: int = 0
    seen: list[Tensor] = field(default_factory=list)

    def remember(self, x: Tensor, call: Call) -> None:
        self.seen.append(x)

    def linear(self, out: Tensor, call: Call) -> Tensor:
        self.calls += 1
        x = self.seen.pop()
        safe = torch.where(x == 0, torch.ones_like(x), x)
        ratio = torch.where(x.abs() > 1e-9, out / safe, torch.zeros_like(x))
        return value_of(out, x * ratio.detach())

    def must_have_run(self) -> None:
        """A model may hold an activation module and yet compute it as a function."""
        if not self.calls:
            raise NotServed(
                "rule 'linear_act'",
                f"the forward pass computes {type(self.module).__name__} without its module",
                "leave the rule out",
            )


def _around(plan: Plan, module: nn.Module, rule: _LinearNorm | _LinearActivation) -> None:
    """Put a rule before everything else that happens at a module's output, after all at its input."""
    install(module, "input")
    install(module, "output")
    plan.inputs.setdefault(module, []).append(Bound(Plain(), rule.remember))
    plan.outputs.setdefault(module, []).insert(0, Bound(Plain(), rule.linear))


def _detach_norm(model: Model, plan: Plan) -> None:
    for norm in _norms(model):
        _around(plan, norm, _LinearNorm(norm, effective_gain(norm)))


def _detach_pattern(model: Model, plan: Plan) -> None:
    for site in _served(model, ("pattern", "cross_pattern"), "detach_pattern"):
        place(plan, model.tap(site), lambda x, call: x.detach(), site.tower, "rule 'detach_pattern'")


def _half_gate(model: Model, plan: Plan) -> None:
    if any("experts" in block.roles for tower in model.architecture.towers for block in tower.blocks):
        raise NotServed("rule 'half_gate'", "the gates of experts are inside one fused kernel", "leave the rule out")
    gated = [Site("mlp_act", s.layer, tower=s.tower) for s in model.sites if s.point == "mlp_gate"]
    if not gated:
        raise NotServed("rule 'half_gate'", f"no MLP of {model.name} has a gate", "leave the rule out")
    for site in gated:
        tap = model.tap(site)
        install(tap.module, tap.side)
        # In front of all else at the site: a gradient opened there is the product's own, whole; its factors share it.
        halve = Bound(tap.view, lambda x, call: value_of(x, 0.5 * x), site.tower, "rule 'half_gate'")
        plan.inputs.setdefault(tap.module, []).insert(0, halve)


def _linear_act(model: Model, plan: Plan) -> None:
    blocks = (block.part.module for tower in model.architecture.towers for block in tower.blocks)
    found = [module for block in blocks for module in block.modules() if _is_activation(module)]
    if not found:
        raise NotServed(
            "rule 'linear_act'", f"{model.name} calls its activation as a function, not a module", "leave the rule out"
        )
    # A head in front of the logits may have one more; poolers do too, which run for other outputs.
    elsewhere = [module for module in model.module.modules() if _is_activation(module) and module not in found]
    for module in dict.fromkeys([*found, *elsewhere]):
        rule = _LinearActivation(module)
        _around(plan, module, rule)
        if module in found:
            plan.end.append(rule.must_have_run)


def _is_activation(module: nn.Module) -> bool:
    name = type(module).__name__
    leaf = not any(True for _ in module.children()) and not any(True for _ in module.parameters())
    return leaf and (name.endswith("Activation") or name in {"SiLU", "GELU", "ReLU", "GELUTanh", "Tanh", "Sigmoid"})


def _served(model: Model, points: tuple[str, ...], rule: str) -> list[Site]:
    sites = [s for s in model.sites if s.point in points]
    if not sites:
        raise NotServed(f"rule '{rule}'", f"{model.name} serves no {points[0]}", "leave the rule out")
    return sites


RULES: dict[str, Callable[[Any, Plan], None]] = {
    "detach_norm": _detach_norm,
    "detach_pattern": _detach_pattern,
    "half_gate": _half_gate,
    "linear_act": _linear_act,
}


def apply_rules(model: Model, plan: Plan, rules: Sequence[str]) -> None:
    """Add backward rules to a plan.

    Raises:
        UnknownName: a rule that does not exist. NotServed: a rule that means nothing for this model.
    """
    for rule in rules:
        if rule not in RULES:
            raise UnknownName(f"rule '{rule}'", "there is no such backward rule", nearest(rule, RULES))
        RULES[rule](model, plan)
