"""The report page of an explanation: which pictures, in which order, with which words around them."""

from __future__ import annotations

from collections.abc import Iterator

from mechanome.explain import document_circuit, document_parts, document_tokens, headline, story
from mechanome.explain.explanation import Explanation
from mechanome.explain.tokens import quoted, whole
from mechanome.explain.verification import LEVEL, MUST_KEEP, MUST_REMOVE, RANDOM_AT_MOST
from mechanome.report import Line, Page, Section, number

_MOST_TOKENS = 32
"""Listed among the facts."""


def document(e: Explanation, replay: str = "", back: str = "") -> Page:
    """The page.

    Args:
        e: an explanation.
        replay: the command that repeats it.
        back: relative path of the page about all prompts, for a link; empty for none.
    """
    return Page(
        name=f"{e.verdict}: {e.question.prompt[:60]}",
        kicker=" \u00b7 ".join(("Mechanome", "explain", e.origin.id, *e.origin.notes)),
        title=headline.title(e),
        subtitle=headline.subtitle(e),
        verdict=(e.verdict.capitalize(), e.explained, headline.verdict(e)),
        story=story.story(e),
        sections=tuple(_sections(e)),
        measured=tuple(_measured(e)),
        limits=_LIMITS,
        facts=tuple(_facts(e)),
        command=replay,
        back=("all prompts", back) if back else None,
    )


def _sections(e: Explanation) -> Iterator[Section]:
    if e.question.chat is not None:
        yield document_tokens.chat(e)
    yield document_tokens.prediction(e)
    if e.hidden is not None or e.importance is not None:
        yield document_tokens.tokens(e)
    if e.lens is not None:
        yield document_tokens.layers(e)
    yield document_parts.flow(e)
    yield document_parts.parts(e)
    yield document_parts.named(e)
    if e.direct is not None:
        yield document_parts.writers(e.direct)
    yield document_parts.verification(e)
    if e.stability.comparisons:
        yield document_parts.stability(e)
    if e.circuit is not None:
        yield from document_circuit.circuit(e.circuit)
    if e.units is not None:
        yield from document_circuit.units(e.units)


def _measured(e: Explanation) -> Iterator[Line]:
    q = e.question
    ranked = "; the edges of the circuit are ranked by one, and then run" if e.circuit is not None else ""
    yield (
        "Every effect here is exact: measured by running the unmodified model with one thing changed. None is a "
        f"gradient estimate; where a long prompt has too many places, an estimate chooses which are measured{ranked}.",
    )
    yield ("Choices. ", "; ".join(q.choices) + "." if q.choices else "Answer, foil and counterfactual were given.")
    yield (
        f"Shares. The preference is the logit of {q.answer} minus the logit of {q.foil}, at the last token. Its gap "
        f"between prompt ({number(q.high, 3)}) and counterfactual ({number(q.low, 3)}) is 100 %. More than 100 % "
        "goes beyond the value after the other prompt; a negative share goes the other way.",
    )
    yield (
        f"Test. Explained means: the answer is what the model says; removing the named parts loses at least "
        f"{whole(MUST_REMOVE)} and keeping only them brings back at least {whole(MUST_KEEP)}; in both, random sets of "
        f"as many parts of each kind do at most {whole(RANDOM_AT_MOST)} on average, and the named parts beat them with "
        f"p \u2264 {LEVEL}, p = (1 + sets that do as well) / (1 + sets).",
    )
    if fewer := story.fewer(e):
        yield (f"Note: {fewer}.",)
    for note in e.notes:
        yield (f"Note: {note}.",)


_LIMITS: tuple[Line, ...] = (
    ("One prompt against one counterfactual. That the parts matter here does not show that they do this job elsewhere; "
     "other counterfactuals, where they could be made, are compared in a section of their own.",),
    ("Only what differs between the two prompts is traced. What both share, such as the grammar of the sentence, "
     "is needed too and stays invisible; hiding tokens shows some of it.",),
    ("That a part carries the answer does not say what it computes.",),
    ("Patched runs are states the model never reaches by itself.",),
)  # fmt: skip


def _facts(e: Explanation) -> Iterator[tuple[str, str]]:
    yield "model", e.origin.id
    yield "source", e.origin.source
    yield "weights sha256", e.origin.sha256 or "not a file"
    yield "license", e.origin.license
    more = "" if e.question.length <= _MOST_TOKENS else " \u2026"
    for name, text, shown in (
        ("prompt", e.question.prompt, story.prompt(e)),
        ("counterfactual", e.question.counterfactual, story.counterfactual(e)),
    ):
        if text != shown:  # the page quotes a piece of it
            yield name, text
    yield "prompt tokens", f"{e.question.length} ({' '.join(map(quoted, e.question.tokens[:_MOST_TOKENS]))}{more})"
    yield "seed", str(e.seed)
    yield "versions", ", ".join(f"{name} {version}" for name, version in e.versions.items())
    yield "seconds", ", ".join(f"{name} {value:.1f}" for name, value in e.seconds.items())
