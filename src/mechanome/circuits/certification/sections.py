"""A certificate on a report page: decisions with votes, the statement that is proved, and what it does not say."""

from __future__ import annotations

from mechanome.circuits.certification.certificate import Certificate
from mechanome.report import Meter, Section, Sheet, number

_COLUMNS = (
    ("component", ""),
    ("decision", "in the circuit, outside of it, or abstain: not proved either way"),
    ("votes for it", "share of random sub-datasets on which the method finds it"),
    ("majority above", "lower bound of the share that votes with the majority"),
    ("radius", "insertions, deletions and substitutions of examples that cannot turn the majority around"),
    ("found", "by the method on all examples"),
)


def certificate_section(certificate: Certificate, k: int = 30) -> Section:
    """What is certified, as a section.

    Args:
        certificate: of any method.
        k: components that are listed; the table behind holds all that are in, and as many as were found.
    """
    level, counts = certificate.level, certificate.counts()
    found = int(certificate.found.sum())
    rows = [
        [name, decision, Meter(votes), number(lower, 3), "none" if edits is None else str(edits), on_all]
        for name, decision, votes, lower, edits, on_all in certificate.table(k).rows
    ]
    kept = int((certificate.found & certificate.certified_in).sum())
    return Section(
        "Which parts are certified",
        (
            "The method was run again on random parts of its examples. A part of the circuit is certified where almost "
            "all of these runs agree on it.",
        ),
        Sheet(_COLUMNS, rows, numbers=certificate.table(max(k, found, counts["in"]))),
        finding=(
            f"Of {found} parts found on all examples, {kept} are certified to be in. In all: {counts['in']} in, "
            f"{counts['out']} out, {counts['abstain']} abstain.",
        ),
        method=(
            f"{level.n} masks delete each of {certificate.examples} examples with chance {level.p_del:g}; {level.n0} "
            f"others guessed the majority. Certified means a Clopper-Pearson bound above {level.tau:g}. "
            f"{certificate.statement}",
            *(f" {note}" for note in certificate.notes),
        ),
        limit=(
            "A certificate speaks about other examples, not about other behaviors, models or methods; and about what "
            "the method finds, not about whether that is what the model uses. A certified part may abstain on other "
            "examples; the majority does not decide the other way.",
        ),
    )
