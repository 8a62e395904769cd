"""The circuit of a prompt in sentences, the same for terminal and page."""

from __future__ import annotations

from mechanome.explain.circuit import ENOUGH, PromptCircuit
from mechanome.explain.tokens import counted, quoted
from mechanome.report import number

NEAR = (
    "NDF says how near a circuit's preference comes to the model's: 1 is the model, 0 no nearer than the counterfactual"
)


def share(value: float) -> str:
    """A share of all edges, a small one with more digits: `0.28 %`, `71 %`."""
    value = 100 * value
    return f"{number(value, 2 if value < 1 else 1 if value < 10 else 0)} %"


def finding(c: PromptCircuit) -> str:
    """How few edges are enough, or that none of the circuits is."""
    total, edges = c.found.graph.n_edges, c.size
    if not c.enough:
        return (
            f"None of the circuits of up to {c.found.budgets[-1]:,} of {total:,} edges reaches NDF {ENOUGH}; the "
            f"nearest has {edges:,} edges and NDF {number(c.ndf)}."
        )
    parts = f"{counted(int(c.circuit.used.sum()), 'part')} of {len(c.found.graph.sources)}"
    idle = edges - len(c.circuit)
    rest = f" {idle:,} of these edges lie on no path from input to logits, and change nothing." if idle else ""
    return (
        f"{edges:,} of {total:,} edges ({share(edges / total)}) are enough: NDF {number(c.ndf)}, where {ENOUGH} is "
        f"asked for.{rest} The circuit joins {parts}."
    )


def dips(c: PromptCircuit) -> str:
    """That larger circuits are not enough, where some are not."""
    if not c.dips:
        return ""
    which = ", ".join(f"{n:,}" for n in c.dips)
    return f"Larger ones can be worse: with {which} edges it falls below {ENOUGH} again."


def certified(c: PromptCircuit) -> str:
    """How many edges of the circuit are certified; empty where that was not asked for."""
    proof = c.certificate
    if proof is None:
        return ""
    inside = int((proof.components.placed(proof.certified_in) & c.circuit.edges).sum())
    over = f"over {counted(proof.examples, 'prompt')}"
    if not inside:
        return f"None of the circuit's {len(c.circuit):,} edges is certified {over}: each hangs on single prompts."
    return (
        f"Certified {over}: {inside:,} of the circuit's {len(c.circuit):,} edges. They are among the {c.size:,} "
        "strongest on average, and no insertion, deletion or substitution of a prompt turns the majority of random "
        "parts of these prompts against them."
    )


def rankings(c: PromptCircuit) -> str:
    """Whose rankings were tried, whose won, and what the circuit keeps elsewhere."""
    if not c.samples:
        return (
            "Only the prompt's own ranking of edges was tried; --paraphrases FILE, with prompts of the same behavior, "
            "tries theirs, too."
        )
    n, who = len(c.samples), c.proposer(c.place)
    own = c.alone[c.place]
    won = (
        f"that of {quoted(who)} gave this circuit (the prompt's own gives NDF {number(own)} at this size)"
        if who
        else "the prompt's own gave this circuit"
    )
    kept = c.elsewhere
    rest = "" if kept is None else f". On the other paraphrases the circuit has NDF {number(kept)} on average"
    return f"The rankings of {counted(n, 'paraphrase')} were tried besides the prompt's own; {won}{rest}."
