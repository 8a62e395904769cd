"""What can be refused before a model is opened: arguments that no model could serve, and models that serve none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mechanome.circuits.finding.unit_graph import UNITS
from mechanome.core import BadInput
from mechanome.engine.asked import one_of
from mechanome.engine.memory import Budget, parse_budget
from mechanome.engine.plain import whole
from mechanome.explain.asked import Asked, check_asked, check_certify
from mechanome.explain.models import check_named
from mechanome.explain.tokens import quoted


def refuse_early(
    prompt: Asked,
    model: Any,
    answer: str | None,
    foil: str | None,
    counterfactual: Asked | None,
    counterfactuals: int,
    seed: int,
    budget: Budget,
    circuit: bool,
) -> None:
    """Check the arguments of `explain`; those that need the model are checked by `ask`.

    Raises:
        BadInput: an argument that cannot be used, with its fix.
        UnknownModel, NotServed: a name that opens no model, or no language model.
    """
    check_asked("the prompt", prompt)
    if counterfactual is not None:
        check_asked("the counterfactual", counterfactual)
    for role, text in (("answer", answer), ("foil", foil)):
        if text is not None and not isinstance(text, str):
            raise BadInput(f"{role} of type {type(text).__name__}", "it is a text", f"write {role}=' Paris'")
        if text == "":
            raise BadInput(f"{role} ''", "it has no token", f"give a word, such as --{role} ' Paris'")
    if answer is not None and answer == foil:
        raise BadInput(f"foil {quoted(foil)}", "it is the answer", "choose another foil")
    for name, value, least in (("counterfactuals", counterfactuals, 1), ("seed", seed, 0)):
        number = whole(value)
        if number is None or number < least:
            why = f"it must be a whole number of at least {least}"
            raise BadInput(f"{name}={value!r}", why, f"give one such as {least + 2}")
    if not isinstance(circuit, bool):
        raise BadInput(f"circuit={circuit!r}", "it is yes or no", "give True or False")
    parse_budget(budget)
    if isinstance(model, str | Path):
        check_named(model)


def refuse_extras(units: str | None, certify: bool, circuit: bool, paraphrases: int) -> None:
    """Check what `explain` is asked for besides.

    Raises:
        BadInput: units that there are not, a certificate without circuit. TooFewRows: too few paraphrases for one.
    """
    if units is not None:
        one_of("units", units, UNITS, "MLPs cannot be cut into these")
    check_certify(certify, circuit, paraphrases)
