"""The verb `mechanome circuit`, with its run folder: the circuit, its scores, the record and the page.

A run leaves a folder with everything in it, or nothing: on an error, or on Ctrl-C, it is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechanome.circuits.certification import save_certificate
from mechanome.circuits.circuit_files import save_circuit, save_eap_ig
from mechanome.circuits.finding.discovery import Discovery, discover
from mechanome.circuits.finding.settings import Settings
from mechanome.core import BadInput, CorruptFile, Left, RunFolder, notice, sha256, verb, write_json
from mechanome.core.whole_runs import whole_run
from mechanome.tasks import Task, task_file

VERB = "circuit"
RESULT = "discovery.json"
_NAMED = 500_000
"""Edges that a circuit's file names at most; between chosen units there can be millions."""


@dataclass(frozen=True)
class Outcome(Left[Discovery]):
    """What the verb leaves behind.

    Args:
        file: the name of the result's record in the folder.
    """

    file: str = RESULT

    def code(self, strict: bool = False) -> int:
        """The exit code: 1 where `strict` asks for a faithful circuit and this is none."""
        return int(strict and self.found.verdict != "faithful")


def run(task: str, *, model: str, out: str | Path = "runs", quiet: bool = False, **settings: Any) -> Outcome:
    """Find a circuit, and write the run folder; if anything goes wrong, or on Ctrl-C, no folder is left.

    Args:
        task, model, quiet, settings: as in `mechanome.circuits.finding.discovery.discover`.
        out: where run folders are.

    Raises:
        MechanomeError: as `discover`; and where the folder cannot be made.
    """
    file = task_file(task)
    read = None if file is None else Task.from_jsonl(file)
    asked = Settings(**settings)
    arguments = {
        "task": task if file is None else str(file.resolve()),
        "sha256": None if file is None else sha256(file),
        "model": model,
        "settings": {name: value for name, value in asked.record().items() if name != "seed"},
    }
    with whole_run(VERB, arguments, base=out, seed=asked.seed) as folder:
        found = discover(task if read is None else read, model, quiet=quiet, **settings)
        return _written(folder, found)


def _written(folder: RunFolder, found: Discovery) -> Outcome:
    """Everything that is kept of a discovery, in its folder."""
    outcome, path = Outcome(found, folder.path), folder.path
    ranked, edges = found.ranked, found.settings.level == "edge"
    values = ranked.scores.values if ranked.scores is not None and edges else None
    if len(found.circuit) <= _NAMED:
        save_circuit(found.circuit, path / "circuit.json", scores=values)
    else:
        parts = 'Circuit.of_nodes(graph, [p["source"] for p in record["circuit"]["parts"]]).pruned()'
        notice(f"no circuit.json: it has {len(found.circuit):,} edges; with the record of {RESULT} it is {parts}")
    try:
        save_eap_ig(found.circuit, path / "eap-ig.json", scores=values)
    except BadInput as error:
        notice(f"no eap-ig.json: {error.why}")
    s = ranked.screened
    kept = {"scores": ranked.scores} if s is None else {"estimate": s.estimate, "exact": s.exact}
    for name, scores in kept.items():
        if scores is not None:
            scores.save(path / f"{name}.safetensors")
    if found.certificate is not None:
        save_certificate(found.certificate, path / "certificate.json")
    found.halves.task.to_jsonl(path / "examples.jsonl")
    write_json(path / outcome.file, outcome.record)
    folder.write_report(found.html(f"mechanome replay {path}"))
    return outcome


@verb(VERB)
def _again(arguments: Mapping[str, Any]) -> Outcome:
    """Run what a configuration says; a file of examples must still be the one it was.

    Raises:
        CorruptFile: arguments that are missing. BadInput: another file.
    """
    try:
        task, recorded, model, out = (arguments[name] for name in ("task", "sha256", "model", "out"))
        settings = {**arguments["settings"], "seed": arguments["seed"]}
    except (KeyError, TypeError) as error:
        raise CorruptFile(f"a run of {VERB}", f"an argument is missing ({error})", "restore its config.yaml") from error
    if recorded is not None and sha256(Path(task)) != recorded:
        raise BadInput(task, "it was changed since this run", "restore it, or start a new run")
    return run(task, model=model, out=out, **settings)
