"""`Plan`: a study with every choice made. It is what `config.yaml` holds, and it knows whether its result may count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Literal, cast

from mechanome.core import TIERS, BadInput, Tier, UnknownName, nearest, plain
from mechanome.studies.study import S, Scale, Study

Seeds = int | Sequence[int] | Literal["pilot"] | None
"""How many of the tier's seeds, or which, or the pilot seeds; None for the tier's own number."""


@dataclass(frozen=True)
class Plan(Generic[S]):
    """What will be run.

    Args:
        study: which.
        tier: how much work.
        seeds: the seeds themselves.
        models: role to model.
        settings: of the measurement.
    """

    study: Study[S]
    tier: Tier
    seeds: tuple[int, ...]
    models: Mapping[str, str]
    settings: S

    @property
    def scale(self) -> Scale[S]:
        """The tier as the study fixed it."""
        return self.study.scales[self.tier]

    @property
    def judged(self) -> bool:
        """Whether claims get a verdict: not in the smoke tier, and never on pilot seeds."""
        return self.tier != "smoke" and set(self.seeds) <= set(self.study.seeds)

    @property
    def why_not_recorded(self) -> tuple[str, str] | None:
        """Why the result cannot be the study's record, and the fix; None where it can."""
        own = resolve(self.study, self.tier)
        reasons = (
            (self.tier == "smoke", "the smoke tier only shows that the code runs", "use --tier cpu or --tier full"),
            (not self.judged, "pilot seeds are for trying things out", "leave --pilot out"),
            (self.models != own.models, "it runs on other models than the study's", "leave --model out"),
            (self.seeds != own.seeds, "it does not run on all seeds of its tier", "leave --seeds out"),
            (self.settings != own.settings, "it changes the study's settings", "leave them as they are"),
        )
        return next(((why, fix) for applies, why, fix in reasons if applies), None)

    def arguments(self) -> dict[str, Any]:
        """What `run` needs to make this plan again, as plain data."""
        settings = plain(asdict(cast(Any, self.settings)), "settings")
        return {
            "study": self.study.name,
            "tier": self.tier,
            "seeds": list(self.seeds),
            "models": dict(self.models),
            "settings": settings,
        }


def resolve(
    study: Study[S],
    tier: str = "cpu",
    seeds: Seeds = None,
    models: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Plan[S]:
    """Fill in what was not chosen.

    Args:
        study: which.
        tier: "smoke", "cpu" or "full".
        seeds: how many of the tier's seeds, a list of the study's seeds, or "pilot". The smoke tier has pilot seeds.
        models: role to model, in place of the tier's; the role "" stands for the first.
        settings: fields of the tier's settings to change.

    Raises:
        UnknownName: no such tier, role or setting.
        BadInput: no study, seeds that it does not have, models or settings without names.
    """
    if not isinstance(study, Study):
        raise BadInput(f"a study of type {type(study).__name__}", "it is none", "give a name of STUDIES, or a Study")
    for what, chosen_for in (("models", models), ("settings", settings)):
        if not isinstance(chosen_for, Mapping | None):
            given = type(chosen_for).__name__
            raise BadInput(f"{what} of type {given}", "each has a name", f"give a mapping, such as {what}={{...}}")
    if tier not in TIERS:
        raise UnknownName(f"tier '{tier}'", "there is no such tier", nearest(tier, TIERS))
    scale = study.scales[tier]
    chosen = _seeds(study, scale, seeds, tier)
    return Plan(study, tier, chosen, _models(scale, models or {}), _settings(scale.settings, settings or {}))


def _seeds(study: Study[S], scale: Scale[S], wanted: Seeds, tier: str) -> tuple[int, ...]:
    if wanted == "pilot" or (wanted is None and tier == "smoke"):
        return study.pilot[: scale.seeds]
    pool = study.pilot if tier == "smoke" else study.seeds
    if wanted is None:
        return pool[: scale.seeds]
    fixed = (*study.seeds, *study.pilot)
    why, fix = f"{study.name} has {list(fixed)}", "name some of these, each once, or say how many"
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if not 0 < wanted <= len(pool):
            raise BadInput(f"{wanted} seeds", f"{study.name} has {len(pool)}", f"use 1 to {len(pool)}")
        return pool[:wanted]
    if isinstance(wanted, str | bytes) or not isinstance(wanted, Sequence):
        raise BadInput(f"seeds {wanted!r}", why, fix)
    given = tuple(int(seed) for seed in wanted if seed in fixed and not isinstance(seed, bool))
    if not given or len(set(given)) != len(wanted):
        raise BadInput(f"seeds {list(wanted)}", why, fix)
    return given


def _models(scale: Scale[S], wanted: Mapping[str, str]) -> dict[str, str]:
    own = dict(scale.models)
    for role, model in wanted.items():
        named = role or next(iter(own), "")
        if named not in own:
            fix = nearest(role, own) if own else "leave --model out"
            raise UnknownName(f"model role '{role}'", "this study has no such role", fix)
        own[named] = model
    return own


def _settings(own: S, wanted: Mapping[str, Any]) -> S:
    known = asdict(cast(Any, own))
    for name in wanted:
        if name not in known:
            raise UnknownName(f"setting '{name}'", "this study has no such setting", nearest(name, known))
    changed = {name: tuple(value) if isinstance(value, list) else value for name, value in wanted.items()}
    return replace(cast(Any, own), **changed)
