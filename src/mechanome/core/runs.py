"""Run folders: what was done, with which settings and versions, so that it can be done again.

A run is ``runs/2026-11-30-123456-explain-ab12cd/`` with ``config.yaml`` (the verb and its resolved arguments),
``metrics.jsonl`` (flushed line by line), ``report.html`` and ``run.json`` (how it went). Verbs register themselves in
one table with :func:`verb`; :func:`replay` reads a ``config.yaml`` and calls the verb with the same arguments.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from mechanome.core.errors import BadInput, CorruptFile, UnknownName, nearest
from mechanome.core.files import atomic_write, existing
from mechanome.core.formats import append_jsonl, plain, read_json, read_jsonl, write_json
from mechanome.core.progress import notice
from mechanome.core.versions import machine, versions

Handler = Callable[[dict[str, Any]], Any]
H = TypeVar("H", bound=Handler)

VERBS: dict[str, Handler] = {}
"""Every replayable verb: its name, and the function that takes its arguments."""

_MATTER = ("mechanome", "torch", "transformers")


def verb(name: str) -> Callable[[H], H]:
    """Register a function of one dictionary of arguments under a verb's name.

    Raises:
        BadInput: another function has that name.
    """

    def register(handler: H) -> H:
        if VERBS.setdefault(name, handler) is not handler:
            raise BadInput(f"verb {name!r}", "it is registered already", "choose another name")
        return handler

    return register


class _Exact(yaml.SafeDumper):
    """YAML that gives every text back unchanged: line breaks and other unprintable characters are escaped."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if text.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Exact.add_representer(str, _Exact.represent_text)


class RunConfig(BaseModel):
    """The content of ``config.yaml``, validated where it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["mechanome-run"] = "mechanome-run"
    verb: str
    seed: int | None = None
    arguments: dict[str, Any]
    versions: dict[str, str]

    def write(self, path: Path) -> None:
        """Write as YAML, atomically."""
        with atomic_write(path, "w") as handle:
            yaml.dump(self.model_dump(), handle, _Exact, sort_keys=False, allow_unicode=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RunConfig:
        """Read and validate.

        Raises:
            BadInput: no such file.
            CorruptFile: not YAML, or not the configuration of a run; the message names the fields.
        """
        try:
            content = yaml.safe_load(existing(path).read_text(encoding="utf-8"))
            return cls.model_validate(content)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
            raise CorruptFile(str(path), f"not a run's configuration ({faults})", "use a run's config.yaml") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            where = " ".join(str(error).split())
            raise CorruptFile(str(path), f"not YAML ({where})", "restore it from its run folder") from error


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. As a context manager it records how the run ended, and how long it took.

    Args:
        path: the folder.
        config: what is run.
        started: when, local time with its offset, ISO 8601.
        before: seconds that were spent on it before it was opened again.
    """

    path: Path
    config: RunConfig
    started: str
    before: float = 0.0
    _clock: float = field(default_factory=time.monotonic, repr=False, compare=False)

    @classmethod
    def create(
        cls, verb: str, arguments: Mapping[str, Any], *, base: str | os.PathLike[str] = "runs", seed: int | None = None
    ) -> RunFolder:
        """Make the folder and write its ``config.yaml``.

        Args:
            verb: what is run; :func:`replay` looks it up in ``VERBS``.
            arguments: resolved, defaults filled in; numbers, text, lists and dictionaries only.
            base: where run folders are.
            seed: given to the verb again as ``arguments["seed"]`` when replayed; None for a verb without one.

        Raises:
            NotFinite, BadInput: an argument cannot be written, or the folder cannot be made; nothing is made.
        """
        config = RunConfig(verb=verb, seed=seed, arguments=plain(arguments, "arguments"), versions=versions())
        stamp = datetime.now().astimezone()
        path = Path(base) / f"{stamp:%Y-%m-%d-%H%M%S}-{verb.replace(' ', '-')}-{secrets.token_hex(3)}"
        try:
            path.mkdir(parents=True)
        except (OSError, ValueError) as error:
            raise BadInput(str(base), f"no run folder can be made there ({error})", "choose another folder") from error
        config.write(path / "config.yaml")
        run = cls(path, config, stamp.isoformat(timespec="seconds"))
        run._record(status="running")
        return run

    @classmethod
    def reopen(cls, path: Path, config: RunConfig) -> RunFolder:
        """A folder that was made before.

        Raises:
            BadInput: it has no ``run.json``.
            CorruptFile: that is damaged.
        """
        outcome = read_json(path / "run.json")
        if not (
            isinstance(outcome, dict)
            and isinstance(outcome.get("started"), str)
            and isinstance(outcome.get("seconds", 0.0), int | float)
        ):
            raise CorruptFile(str(path / "run.json"), "not what a run leaves behind", "restore it, or start a new run")
        return cls(path, config, outcome["started"], outcome.get("seconds", 0.0))

    @property
    def report(self) -> Path:
        """Where ``report.html`` goes."""
        return self.path / "report.html"

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append a step's metrics to ``metrics.jsonl``; fits as ``on_metrics`` of :func:`mechanome.core.fit.fit`."""
        append_jsonl(self.path / "metrics.jsonl", {"step": step, **metrics})

    def metrics(self) -> list[dict[str, Any]]:
        """The logged rows; where a resumed fit reported a step again, the later row stands.

        Raises:
            CorruptFile: damaged, or a row without its step.
        """
        file = self.path / "metrics.jsonl"
        rows = list(read_jsonl(file)) if file.exists() else []
        for n, row in enumerate(rows, 1):
            if not isinstance(row.get("step"), int):
                raise CorruptFile(f"{file}, row {n}", "it has no step", "restore it, or start a new run")
        return list({row["step"]: row for row in rows}.values())

    def write_report(self, html: str) -> Path:
        """Write ``report.html`` atomically; returns its path."""
        with atomic_write(self.report, "w") as handle:
            handle.write(html)
        return self.report

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        seconds = round(self.before + time.monotonic() - self._clock, 3)
        if error is None:
            self._record(status="done", seconds=seconds)
        else:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self._record(status=status, error=f"{type(error).__name__}: {error}", seconds=seconds)

    def _record(self, **outcome: Any) -> None:
        facts = {"verb": self.config.verb, "started": self.started, **outcome}
        write_json(self.path / "run.json", {**facts, "versions": self.config.versions, "machine": machine()})


def replay(config: str | os.PathLike[str], say: Callable[[str], None] = notice) -> Any:
    """Run again what a ``config.yaml`` describes.

    Args:
        config: the file, or its run folder.
        say: told where versions differ from those of the run, so that different numbers surprise nobody.

    Returns:
        whatever the verb returns.

    Raises:
        BadInput: no such file.
        CorruptFile: damaged, or not a run's configuration.
        UnknownName: a verb that is not registered.
    """
    path = Path(config)
    recorded = RunConfig.read(path / "config.yaml" if path.is_dir() else path)
    if recorded.verb not in VERBS:
        raise UnknownName(f"verb {recorded.verb!r}", f"in {path}", nearest(recorded.verb, VERBS))
    now = versions()
    for name in _MATTER:
        then = recorded.versions.get(name, "none")
        if then != now.get(name, "none"):
            say(f"this run was made with {name} {then}, replayed with {now.get(name, 'none')}: numbers may differ")
    seed = {} if recorded.seed is None else {"seed": recorded.seed}
    return VERBS[recorded.verb]({**recorded.arguments, **seed})
