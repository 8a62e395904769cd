"""A study whose answers are known: seeds draw numbers around 1, and its claims are about their mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from mechanome.core import Claim, bootstrap
from mechanome.report import Section, Sheet
from mechanome.studies import Context, Effect, Measured, Quantity, Scale, Study


@dataclass(frozen=True)
class Settings:
    draws: int
    words: tuple[str, ...] = ("a", "b")
    calls: str = ""
    stop_at: int = -1


def measure(context: Context[Settings]) -> Measured:
    size = context.settings

    def draw(seed: int) -> dict[str, torch.Tensor]:
        if size.calls:
            with Path(size.calls).open("a") as handle:
                handle.write(f"{seed}\n")
        if seed == size.stop_at and not Path(f"{size.calls}.go").exists():
            raise KeyboardInterrupt
        return {"x": 1 + 0.1 * torch.randn(size.draws, dtype=torch.float64)}

    found = torch.cat([part["x"] for part in context.each("draw", context.seeds, draw)])
    mean = bootstrap(found)
    wide = bootstrap(torch.tensor([-9.0, 11.0, -8.0, 10.0]))
    effects = {
        "near-one": Effect(mean),
        "above-two": Effect(mean, "it is 1 by construction"),
        "unsure": Effect(wide),
        "missing": Effect(None, "nothing to measure it with"),
        "spread": Effect(bootstrap(found, lambda x: float(x.std()))),
    }
    section = Section("Numbers", ("Each draw <b>.",), Sheet((("n", ""),), [[str(len(found))]]))
    return Measured(effects, (section,), (f"{len(found)} draws",))


def study(**changes: object) -> Study[Settings]:
    """The study, with some of its fields changed."""
    fields = {
        "name": "known-answer",
        "paper": 99,
        "title": "A Known Answer",
        "source": "Nobody 2026",
        "home": "tests",
        "claims": (
            Claim("near-one", "mean of the draws", "in [0.9, 1.1]"),
            Claim("above-two", "mean of the draws", ">= 2"),
            Claim("unsure", "mean of four far numbers", "> 0"),
            Claim("missing", "nothing", "> 0"),
        ),
        "reported": (Quantity("spread", "their standard deviation"),),
        "measure": measure,
        "scales": {
            "smoke": Scale(Settings(4)),
            "cpu": Scale(Settings(20), seeds=3),
            "full": Scale(Settings(200), {"reader": "some/model", "other": "some/other"}),
        },
        "seeds": (0, 1, 2, 3),
        "pilot": (100, 101),
        "method": ("Numbers are drawn.",),
        "limits": ("It shows nothing else.",),
    }
    return Study(**{**fields, **changes})  # type: ignore[arg-type]
