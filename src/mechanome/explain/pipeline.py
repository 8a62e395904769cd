"""`explain`: one behavior, from prediction to verified mechanism."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from mechanome.core import BadInput, BudgetTooSmall, MechanomeError, NotFinite, NotServed, stage, versions
from mechanome.engine import Model, load
from mechanome.engine.memory import Budget
from mechanome.explain.asked import Asked
from mechanome.explain.circuit import prompt_circuit
from mechanome.explain.components import KINDS, components, every_site, ranking
from mechanome.explain.direct import direct
from mechanome.explain.effects import Grid, flow, having, parts
from mechanome.explain.explanation import Explanation, Origin
from mechanome.explain.hiding import hide
from mechanome.explain.importance import importance
from mechanome.explain.items import further, items
from mechanome.explain.lens import lens
from mechanome.explain.pair import Pair
from mechanome.explain.question import ask
from mechanome.explain.refusals import refuse_early, refuse_extras
from mechanome.explain.stability import stability
from mechanome.explain.tokens import Prediction
from mechanome.explain.units import prompt_units, unit_graph
from mechanome.explain.verification import verify
from mechanome.tasks import Example, Task

DEFAULT_MODEL = "smollm2-135m-instruct"
_NO_CIRCUIT = (NotServed, NotFinite, BudgetTooSmall)
"""Refusals that cost the circuit, and not the explanation."""
SHOWN = 10
"""Next tokens listed after the prompt and after the counterfactual."""


def explain(
    prompt: Asked | Example,
    model: str | Path | nn.Module | Model = DEFAULT_MODEL,
    *,
    answer: str | None = None,
    foil: str | None = None,
    counterfactual: Asked | None = None,
    counterfactuals: int = 3,
    seed: int = 0,
    budget: Budget = None,
    circuit: bool = True,
    paraphrases: Path | Sequence[Any] | Task = (),
    certify: bool = False,
    units: str | None = None,
    quiet: bool = False,
) -> Explanation:
    """Explain why a language model continues a prompt as it does, and test the explanation.

    Args:
        prompt: the text whose continuation is explained, or a chat (messages with "role" and "content"), which the
            model's own template turns into tokens up to where its answer begins; or an example of a task, which brings
            its answer, foil and counterfactual where none is given beside it.
        model: what `mechanome.load` opens, or an opened model.
        answer: the continuation to explain, as text; None takes the likeliest token. Where answer and foil are several
            tokens, the first at which they differ is explained, behind those they share.
        foil: rather than what; None takes the likeliest token after the counterfactual, or the runner-up.
        counterfactual: compared with what: a prompt of as many tokens with another answer; None makes one by swapping
            a token for another of its kind.
        counterfactuals: how many the finding is compared over: the one that is explained and, as far as they can be
            made, automatic ones besides.
        seed: of the random sets of parts that the explanation is compared with.
        budget: memory for the largest piece of work, such as "2GB"; None for a quarter of what is free.
        circuit: find the circuit, too: how few edges of the model's graph are enough.
        paraphrases: further prompts of the same behavior, as `explain_many` takes them (a file, a list, a `Task`); for
            the circuit their rankings of edges are tried beside the prompt's own.
        certify: certify which edges of the circuit (and units) hang on no single prompt; needs eight paraphrases or so.
        units: find, too, which "neurons" or "svd" units of MLPs carry the answer, what they read and what they write.
        quiet: no progress.

    Returns:
        an `Explanation`: `e.verdict`, `e.components`, `e.table()`, `e.html()`, `e.to_json()`.

    Raises:
        BadInput: a prompt, answer, foil, counterfactual or option that cannot be used, each with its fix, before the
            model is opened where that can be known; also where no automatic counterfactual can be made.
        ShapeMismatch: a counterfactual of another token length.
        UnknownModel, NotServed: a model that cannot be opened, or that is no language model; or without such units.
        TooFewRows: a certificate from too few paraphrases.
    """
    if isinstance(prompt, Example):
        [item] = items([prompt])
        prompt = item.prompt
        answer = item.answer if answer is None else answer
        foil = item.foil if foil is None else foil
        counterfactual = item.counterfactual if counterfactual is None else counterfactual
    alike = further(paraphrases)
    if alike and not circuit:
        raise BadInput("paraphrases", "they are for the circuit, which is not asked for", "leave one of both out")
    refuse_extras(units, certify, circuit, len(alike))
    refuse_early(prompt, model, answer, foil, counterfactual, counterfactuals, seed, budget, circuit)
    clock = _Clock(quiet)
    with clock.part("open the model"):
        opened = load(model)
        cut = None if units is None else unit_graph(opened, units)
    with clock.part("choose answer, foil and counterfactual"):
        question = ask(opened, prompt, answer, foil, counterfactual)
    left_out: list[str] = []
    with clock.part("logit lens"), _optional("logit lens", left_out):
        reading = None
        reading = lens(opened, question)
    with clock.part("hide each token"), _optional("hiding tokens", left_out):
        hidden = None
        hidden = hide(opened, question, budget)
    with clock.part("token importance"), _optional("token importance", left_out):
        weighed = None
        weighed = importance(opened, question, budget)
    with clock.part("residual stream"):
        stream = flow(opened, question, budget, quiet)
    kinds = [kind for kind in KINDS if having(opened, kind.point)]
    if not kinds:
        raise NotServed(f"explaining {opened.name}", "no head, MLP or mixer of it can be patched", "use another model")
    grids: list[Grid] = []
    for kind in kinds:
        with clock.part(f"every {kind.name}"):
            grids.append(parts(opened, question, kind.point, kind.axis, budget, quiet))
    with clock.part("direct attribution"), _optional("direct attribution", left_out):
        written = None
        written = direct(opened, question, grids)
    with clock.part("name the parts"):
        pair = Pair.of(opened, question, [site.whole for site in every_site(grids)], quiet)
        ranked = ranking(pair, grids)
        named = components(pair, ranked)
    with clock.part("verify"):
        verified = verify(pair, grids, named, seed)
    with clock.part("other counterfactuals"):
        steady = stability(opened, question, grids, named, counterfactuals - 1, budget, quiet)
    wired = None
    if circuit:
        with clock.part("circuit"), _optional("circuit", left_out, () if certify else _NO_CIRCUIT):
            proved: Any = {"certified": certify, "seed": seed}
            wired = prompt_circuit(opened, question, grids, named, alike, **proved, budget=budget, quiet=quiet)
    carried = None
    if cut is not None and units is not None:
        others = () if wired is None else wired.questions
        with clock.part(units):
            carried = prompt_units(
                cut, units, question, others, certified=certify, seed=seed, budget=budget, quiet=quiet
            )
    return Explanation(
        question=question,
        prediction=Prediction.of(opened, question.clean_logits, SHOWN),
        counter_prediction=Prediction.of(opened, question.corrupted_logits, SHOWN),
        lens=reading,
        hidden=hidden,
        importance=weighed,
        flow=stream,
        parts=tuple(grids),
        direct=written,
        components=named,
        verification=verified,
        stability=steady,
        origin=_origin(opened),
        versions=versions(),
        seed=seed,
        seconds=clock.seconds,
        left_out=tuple(left_out),
        cut=ranked.cut,
        circuit=wired,
        units=carried,
    )


class _Clock:
    """Wall time of each part of the work, which is told of as it begins.

    Args:
        quiet: tell nobody.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        with stage(name, self.quiet):
            yield
        self.seconds[name] = time.perf_counter() - start


@contextmanager
def _optional(
    what: str, left_out: list[str], refusals: tuple[type[MechanomeError], ...] = (NotServed,)
) -> Iterator[None]:
    """A part that some models cannot serve, or that is refused otherwise: it is left out, and the result says why."""
    try:
        yield
    except refusals as refusal:
        left_out.append(f"{what} left out: {refusal.why or refusal.what}")


def _origin(model: Model) -> Origin:
    source = model.source
    if source is None:
        return Origin(model.name, "a module passed in", "", "unknown")
    return Origin(source.id, source.source, source.sha256, source.license, tuple(source.notes))
