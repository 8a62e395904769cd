"""The driver's end: worker processes, started when first asked, that answer timed requests over pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.harness.environments import ROOT, python_of


@dataclass(frozen=True)
class Engine:
    """One way to do the work: a module that serves tasks, and the environment it runs in.

    Attributes:
        module: run as `python -m module`.
        peer: the environment's name, or None for the driver's own.
    """

    module: str
    peer: str | None = None

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.peer is None else python_of(self.peer)


@dataclass(frozen=True)
class Answer:
    """What one request took: seconds by the chosen clock; peak resident memory in MB and, if the task has something to
    say, its note where results were saved."""

    seconds: float
    peak_mb: float | None = None
    note: str = ""


class WorkerFailed(RuntimeError):
    """A worker died, or a task in it raised; the message holds its traceback or the end of its output."""


class Worker:
    """One process that holds one loaded engine."""

    def __init__(self, engine: Engine, settings: Mapping[str, Any]) -> None:
        self.engine = engine
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the process)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(settings["threads"]),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TQDM_DISABLE": "1",
        }
        self._process = subprocess.Popen(
            [str(engine.python), "-m", engine.module, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.versions: dict[str, str] = self._read()

    def ask(self, task: str, args: Mapping[str, Any], save: Path | None = None) -> Answer:
        """Run a task once.

        Args:
            save: where its results go, a path ending in `.npz`; peak memory is taken with them.

        Raises:
            WorkerFailed: with the worker's traceback.
        """
        request = {"task": task, "args": args, "save": None if save is None else str(save)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise WorkerFailed(f"{self.engine.module}, task {task}:\n{answer['error']}")
        return Answer(**answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise WorkerFailed(f"{self.engine.module} ended:\n{self._log.read()[-4000:]}")
        return json.loads(line)


@dataclass
class Workers:
    """Workers by engine and model; each is started once and kept until it is closed.

    Attributes:
        engines: by name.
        settings: what every worker is started with.
    """

    engines: Mapping[str, Engine]
    settings: Mapping[str, Any]
    _running: dict[tuple[str, str], Worker] = field(default_factory=dict)

    def get(self, engine: str, model: Mapping[str, Any] | None = None) -> Worker:
        """The worker of an engine.

        Args:
            model: replaces parts of the settings.
        """
        changed = dict(model or {})
        key = (engine, json.dumps(changed, sort_keys=True))
        if key not in self._running:
            self._running[key] = Worker(self.engines[engine], {**self.settings, **changed})
        return self._running[key]

    def versions(self) -> dict[str, str]:
        """Versions of the peers that ran so far: `nnsight`, and what it ran on, such as `nnsight on torch`."""
        found: dict[str, str] = {}
        for worker in self._running.values():
            if worker.engine.peer is not None:
                (package, version), *under = worker.versions.items()
                found |= {package: version, **{f"{package} on {name}": v for name, v in under}}
        return found

    def close(self, changed_only: bool = False) -> None:
        """End workers: all, or only those whose model is not that of the settings."""
        for key in [k for k in self._running if k[1] != "{}" or not changed_only]:
            self._running.pop(key).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
