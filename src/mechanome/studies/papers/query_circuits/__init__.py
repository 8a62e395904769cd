"""Paper 06: is there a sparse circuit for one query, and do other inputs of the same behavior find it better?

Every edge is scored on a query and on samples of its behavior; each matrix of scores proposes circuits, and the one
that reproduces the model best on the query is taken. Against it stand the query's own scores, averages, and controls
that choose among as many circuits without looking at samples. Thresholds were fixed before the final seeds were run.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Claim
from mechanome.studies.study import Quantity, Scale, Study, measured_in

ARMS = {
    "single": "the query's own scores",
    "averaging": "mean scores of query and samples",
    "best-of-n": "best of query and samples",
    "best-of-n-csm": "one ranking of the winners",
    "gaussian": "control: best of noisy scores",
    "edge-replacement": "control: best with random edges in it",
    "random": "control: best of random circuits",
}
"""Methods that are compared at every size."""


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Args:
        queries: of each kind and seed. samples: other inputs of each. candidates: queries tried of each kind and seed.
        budgets: circuit sizes in edges. between: sizes that are interpolated.
        upto: the largest size that means of NDF take in.
        steps: of EAP-IG. effect: by how much a query's counterfactual must lower the metric, in logits.
        enough: share of candidates answered right from which a kind is used. target: NDF of a circuit that is good.
    """

    queries: int
    samples: int
    candidates: int
    budgets: tuple[int, ...] = (100, 250, 500, 1000, 2000, 5000, 10000)
    between: tuple[int, ...] = (175, 375, 750, 1500, 3500, 7500)
    upto: int = 2000
    steps: int = 5
    effect: float = 1.0
    enough: float = 0.5
    target: float = 0.8


STUDY = Study(
    name="query-circuits",
    paper=6,
    title="Query Circuits: Explaining How Language Models Answer User Prompts",
    source="ICML 2026, arXiv 2509.24808",
    home="mechanome.circuits",
    claims=(
        Claim("best-over-single", "mean NDF, circuits of up to 2000 edges: best of n minus the query's own", ">= 0.05"),
        Claim("best-over-averaging", "the same mean: best of n minus averaging", "> 0"),
        Claim("best-over-random", "the same mean: best of n minus the best of as many random circuits", ">= 0.2"),
        Claim("one-ranking", "the same mean: best of n minus one ranking for all sizes", "in [-0.1, 0.1]"),
        Claim("in-range", "share of NDF values in [0, 1]", ">= 0.99"),
        Claim("full-graph", "1 - NDF of all edges", "< 0.001"),
        Claim("empty-graph", "NDF of no edge", "< 0.001"),
        Claim("nfs-leaves", "share of queries on which the NFS of a circuit leaves [0, 1]", "> 0"),
        Claim("more-samples", "smallest change of mean NDF when one more sample may propose", ">= 0"),
    ),
    reported=(
        *(Quantity(f"ndf-{arm}", f"{what}: mean NDF, circuits of up to 2000 edges") for arm, what in ARMS.items()),
        Quantity("best-over-gaussian", "that mean: best of n minus the best of noisy scores"),
        Quantity("best-over-replacement", "that mean: best of n minus the best with random edges in it"),
        Quantity("ndf-between", "best of n at sizes between those budgets, up to 2000 edges: mean NDF"),
        Quantity("interpolated-between", "at these sizes: interpolation minus best of n"),
        Quantity("one-ranking-between", "at these sizes: one ranking minus best of n"),
        Quantity("held-out-single", "the query's own circuits on a held-out input: mean NDF, up to 2000 edges"),
        Quantity("held-out-averaging", "averaging's circuits on it: mean NDF, up to 2000 edges"),
        Quantity("held-out-best", "best of n's circuits on it: mean NDF, up to 2000 edges"),
        Quantity("held-out-gain", "on the held-out input: best of n minus the query's own"),
        Quantity("chosen-gain", "best of n: NDF on the query minus on the held-out input"),
        Quantity("others-win", "share of queries and sizes up to 2000 edges at which a sample's circuit won"),
        Quantity(
            "reach-single",
            "share of queries of which some circuit of up to 10000 edges by their own scores has NDF >= 0.8",
        ),
        Quantity(
            "reach-best", "share of queries of which some circuit of up to 10000 edges by best of n has NDF >= 0.8"
        ),
    ),
    measure=measured_in(__name__),
    scales={
        "smoke": Scale(
            Settings(queries=1, samples=1, candidates=12, budgets=(100, 1000), between=(300,), enough=0.0),
            {"decoder": "smollm2-135m-instruct"},
            note="One query of each kind.",
        ),
        "cpu": Scale(
            Settings(queries=5, samples=5, candidates=60),
            {"decoder": "smollm2-135m-instruct"},
            note="Ten queries of each kind, five samples of each; 70,651 edges.",
        ),
        "full": Scale(
            Settings(
                queries=50,
                samples=9,
                candidates=400,
                budgets=(100, 250, 500, 1000, 2000, 5000, 10000, 50000, 100000, 200000),
                between=(175, 375, 750, 1500, 3500, 7500, 25000, 75000, 150000),
                steps=20,
            ),
            {"decoder": "meta-llama/Llama-3.2-1B-Instruct"},
            device="cuda",
            note="The paper's other models: --model decoder=openai-community/gpt2 or "
            "meta-llama/Meta-Llama-3-8B-Instruct.",
        ),
    },
    seeds=(0, 1),
    pilot=(100,),
    method=(
        "Queries: who receives something (an ABBA and a BABA template), a country's capital, a sum of two digits "
        "behind two solved sums (without them fewer than half are answered: 5 of 36 when this was tried); the "
        "metric is logit(answer) - logit(foil) at the last position. The counterfactual lets the other person give, "
        "names another country, changes the first digit. Used are queries whose answer is the model's most likely next "
        "token, where the counterfactual lowers the metric by more than one logit; a kind of query is left out where "
        "fewer than half of the candidates are answered so.",
        "Samples of a query are other queries of its template; for capitals, the same country in other words. One more "
        "of them is held out: nothing is scored or chosen on it.",
        "Edges are scored by EAP-IG on inputs (five midpoint steps). A circuit is run with every other edge carrying "
        "what it carries on the counterfactual; NDF is 1 - |m(M) - m(C)| / |m(M) - m(0)|, at least 0. Means are over "
        "queries, and over sizes of 100 to 2000 edges where nothing else is said. Intervals resample queries.",
        "Controls choose among as many circuits as best of n does: the query's own scores and five versions with "
        "normal noise of 0.001 logits; its circuits and five in which 10 % of the edges are random others; six random "
        "circuits.",
    ),
    limits=(
        "One small language model and three simple behaviors; the paper's largest gains are on questions with "
        "paraphrases written by a language model.",
        "Best of n looks at the query when it chooses, so its NDF there is flattered; what it has on the held-out "
        "input is shown beside. In the recorded run its lead over averaging is gone there: .68 against .73, "
        "where the query's own scores have .63. It is the way to the circuit of this query, not of its behavior.",
        "NDF looks at one number at the last position; a circuit of NDF 1 may differ from the model in all else.",
    ),
    beside={
        "held-out-single": "NDF on a held-out input, circuits by the query's own scores",
        "held-out-averaging": "by averaging",
        "held-out-best": "by best of n",
    },
)
