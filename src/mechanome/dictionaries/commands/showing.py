"""The verb `mechanome features`: cards of latents, as one offline page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mechanome.core import BadInput, Left, Table, stage, verb, write_json
from mechanome.core.whole_runs import expect, whole_run
from mechanome.dictionaries.commands.opening import DICTIONARIES, dictionaries, store
from mechanome.dictionaries.features import FeatureCards

VERB, RESULT = "features", "features.json"
_ARGUMENTS = ("path", "acts", "latents", "model", "rows", "effects", "site", "seed", "out")
MOST = 60
"""Cards on a page where no latents are named."""


@dataclass(frozen=True)
class Shown:
    """Cards as a verb leaves them.

    Args:
        cards: what was found. most: of them in the terminal.
    """

    cards: FeatureCards
    most: int = 20

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return self.cards.record()

    def __rich__(self) -> Any:
        table = self.cards.table()
        return Table(table.columns, table.rows[: self.most], table.title).rich()


@dataclass(frozen=True)
class Outcome(Left[Shown]):
    """What the verb leaves behind.

    Args:
        file: the name of the result's record in the folder.
    """

    file: str = RESULT

    def code(self, strict: bool = False) -> int:
        """The exit code."""
        return 0


def run(
    path: str | Path,
    acts: str | Path,
    *,
    latents: Sequence[int] = (),
    model: str | None = None,
    rows: int | None = None,
    effects: bool = True,
    site: str | None = None,
    seed: int = 0,
    out: str | Path = "runs",
    quiet: bool = False,
) -> Outcome:
    """Make cards of some latents, and write the run folder: the page and the record.

    Args:
        path: one dictionary, of any format.
        acts: a store's folder, with tokens.
        latents: which; empty for some that fire, evenly from rare to frequent.
        model: for logit effects and token texts; None for the one that the store was made with.
        rows: read so many; None for all.
        effects: whether the model is opened for logit effects.
        site: where the dictionary reads, for files that do not say.
        seed: of drawn contexts. out: where run folders are. quiet: no progress.

    Raises:
        BadInput: several dictionaries, latents that do not exist, a store without tokens. Whatever reading raises.
    """
    asked = {
        "path": str(path),
        "acts": str(acts),
        "latents": list(latents),
        "model": model,
        "rows": rows,
        "effects": effects,
        "site": site,
    }
    opened, named = store(acts), dictionaries([path], site)
    if len(named) > 1:
        paths = (str(Path(path) / DICTIONARIES / name) for name in named)
        raise BadInput(str(path), f"it holds {len(named)} dictionaries", f"give one: {' or '.join(paths)}")
    if not opened.has_tokens:
        raise BadInput(str(acts), "this store was made from rows, without tokens", "use one that harvest made")
    dictionary = next(iter(named.values()))
    if wrong := [i for i in latents if not 0 <= i < dictionary.spec.width]:
        raise BadInput(f"latents {wrong[:5]}", f"there are 0 to {dictionary.spec.width - 1}", "name some of these")
    with whole_run(VERB, asked, base=out, seed=seed) as folder:
        source = None
        if effects:
            from mechanome.engine import load

            source = load(model or opened.recipe["model"])
        chosen = list(latents)
        if not chosen:
            with stage("Counting what fires", quiet):
                chosen = _some(dictionary, opened, rows)
        with stage(f"Reading contexts of {len(chosen)} latents", quiet):
            cards = FeatureCards.of(dictionary, opened, source, latents=chosen, rows=rows, seed=seed)
        outcome = Outcome(Shown(cards), folder.path)
        write_json(folder.path / RESULT, outcome.record)
        page = replace(cards.page(max(MOST, len(latents))), command=f"mechanome replay {folder.path}")
        folder.write_report(page.html())
        return outcome


def _some(dictionary: Any, acts: Any, rows: int | None) -> list[int]:
    """Latents that fire, evenly by how often; all dead ones are left to the page's counts."""
    from mechanome.dictionaries.metrics import FiringCounts
    from mechanome.dictionaries.metrics.evaluate import batches, joined

    counts = FiringCounts(dictionary.spec.width)
    for batch in batches(acts, rows):
        with torch.no_grad():
            counts.update(dictionary.encode(joined(batch, dictionary.spec.sites_in, dictionary)))
    fired = counts.active
    alive = fired.nonzero()[:, 0]
    if not len(alive):
        raise BadInput("this dictionary", "none of its latents fires on these rows", "check site and normalization")
    ranked = alive[fired[alive].argsort(descending=True, stable=True)]
    at = torch.linspace(0, len(ranked) - 1, min(MOST, len(ranked))).round().long()
    return sorted(ranked[at].tolist())


@verb(VERB)
def _again(arguments: Mapping[str, Any]) -> Outcome:
    """Run what a configuration says, in a new folder."""
    expect(VERB, arguments, _ARGUMENTS)
    return run(**arguments)
