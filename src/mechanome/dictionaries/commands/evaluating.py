"""The verb `mechanome eval`: dictionaries measured on held-out activations, and on text if asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechanome.core import BadInput, Left, Table, stage, verb, write_json
from mechanome.core.whole_runs import expect, whole_run
from mechanome.dictionaries.commands.opening import dictionaries, store
from mechanome.dictionaries.metrics import evaluate, pareto, write_results
from mechanome.dictionaries.metrics.pareto_picture import ParetoPicture
from mechanome.report import Page, Section
from mechanome.report.pictures import Sheet

VERB, RESULT = "eval", "eval.json"
_ARGUMENTS = ("paths", "acts", "rows", "ce", "model", "by", "site", "budget", "seed", "out")
SHOWN = {
    "fvu": "FVU",
    "cosine": "cosine",
    "l0": "L0",
    "dead": "dead",
    "ce_recovered_mean": "recovered",
    "kl": "KL",
}
"""Metrics of the short table, and what they are called there."""


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    Args:
        table: the long table. acts: the store. model: that losses were measured with; empty for none.
    """

    table: Table
    acts: str
    model: str = ""

    @property
    def short(self) -> Table:
        """One line a dictionary, the metrics most asked for; those of all rows only."""
        values: dict[str, dict[str, float]] = {}
        for row in self.table.records():
            if row["metric"] in SHOWN and row["split"].startswith("all"):
                values.setdefault(row["dict_id"], {}).setdefault(row["metric"], row["value"])
        present = [name for name in SHOWN if any(name in each for each in values.values())]
        rows = [(id, *(each.get(name) for name in present)) for id, each in values.items()]
        return Table(["dictionary", *(SHOWN[name] for name in present)], rows)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {"acts": self.acts, "model": self.model, "results": self.table.records()}

    def __rich__(self) -> Any:
        return self.short.rich()

    def page(self, command: str) -> Page:
        """The report."""
        short, many = self.short, len(self.short)
        sections = [
            Section(
                "At a glance",
                ("One line a dictionary. The numbers below are all metrics, with intervals and definitions.",),
                Sheet(
                    [(name, "") for name in short.columns],
                    [[row[0], *("" if cell is None else f"{cell:.4g}" for cell in row[1:])] for row in short.rows],
                    numbers=self.table,
                ),
            )
        ]
        if many > 1:
            front = ParetoPicture(pareto(self.table))
            sections.append(Section("Which are on the front?", ("FVU by active latents; lower is better.",), front))
        best = min(short.records(), key=lambda row: row["FVU"])
        told = f"The lowest FVU is {best['FVU']:.3f}, by {best['dictionary']}, with {best['L0']:.3g} active latents."
        definitions = dict.fromkeys(row["definition"] for row in self.table.records())
        return Page(
            name="Evaluation of dictionaries",
            kicker="Mechanome · eval",
            title=(f"{many} dictionar{'y' if many == 1 else 'ies'} measured",),
            subtitle=(f"on {self.acts}" + (f", losses with {self.model}" if self.model else ""),),
            verdict=("measured", True, (told,)),
            story=(),
            sections=sections,
            measured=tuple((text,) for text in definitions),
            limits=(("Numbers are of these rows and texts; a dictionary that learned from them looks better here.",),),
            command=command,
        )


@dataclass(frozen=True)
class Outcome(Left[Evaluation]):
    """What the verb leaves behind.

    Args:
        file: the name of the result's record in the folder.
    """

    file: str = RESULT

    def code(self, strict: bool = False) -> int:
        """The exit code."""
        return 0


def run(
    paths: Sequence[str | Path],
    acts: str | Path,
    *,
    rows: int | None = None,
    ce: int = 0,
    model: str | None = None,
    by: str | None = None,
    site: str | None = None,
    seed: int = 0,
    budget: str | None = None,
    out: str | Path = "runs",
    quiet: bool = False,
) -> Outcome:
    """Measure dictionaries, and write the run folder: `results.jsonl`, `results.csv`, the record and the page.

    Args:
        paths: dictionaries of any format, or run folders of `fit`.
        acts: a store's folder.
        rows: read so many; None for all.
        ce: sequences of the store's own tokens on which loss recovered is measured; 0 for none.
        model: for that; None for the one that the store was made with.
        by: also on parts of the rows: "role" or "token class".
        site: where the dictionaries read, for files that do not say.
        seed: of intervals. budget: memory for losses. out: where run folders are. quiet: no progress.

    Raises:
        BadInput: nothing to measure, or on; `ce` of a store without tokens. Whatever reading and measuring raise.
    """
    asked = {
        "paths": [str(path) for path in paths],
        "acts": str(acts),
        "rows": rows,
        "ce": ce,
        "model": model,
        "by": by,
        "site": site,
        "budget": budget,
    }
    opened, named = store(acts), dictionaries(paths, site)
    if ce and not opened.has_tokens:
        raise BadInput(f"ce={ce}", "this store was made from rows, without tokens", "use one that harvest made")
    with whole_run(VERB, asked, base=out, seed=seed) as folder:
        used = str(model or opened.recipe["model"]) if ce else ""
        reading: dict[str, Any] = {}
        if ce:
            from mechanome.engine import load

            sequences = opened.sequences
            reading = {
                "model": load(used),
                "texts": [sequences[i].tolist() for i in range(min(ce, len(sequences)))],
                "budget": budget,
                "first": "keep" if opened.recipe["drop"]["bos"] or opened.recipe["drop"]["sinks"] else "replace",
            }
        with stage(f"Measuring {len(named)} dictionar{'y' if len(named) == 1 else 'ies'}", quiet):
            table = evaluate(
                named, opened, rows=rows, by=by, run=folder.path.name, method="loaded", seed=seed, **reading
            )
        found = Evaluation(table, str(acts), used)
        outcome = Outcome(found, folder.path)
        write_results(table, folder.path / "results.jsonl")
        write_results(table, folder.path / "results.csv")
        write_json(folder.path / RESULT, outcome.record)
        folder.write_report(found.page(f"mechanome replay {folder.path}").html())
        return outcome


@verb(VERB)
def _again(arguments: Mapping[str, Any]) -> Outcome:
    """Run what a configuration says, in a new folder."""
    expect(VERB, arguments, _ARGUMENTS)
    return run(**arguments)
