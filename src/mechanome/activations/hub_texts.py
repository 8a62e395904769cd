"""Texts of a Hugging Face data set: the parquet files the hub makes of it, fetched one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mechanome.activations.text_files import Files, Parquet, Source
from mechanome.activations.text_items import Item
from mechanome.core.errors import BadInput, DownloadFailed, NotServed, UnknownName, nearest
from mechanome.engine.registry.cache import offline

_BRANCH = "refs/convert/parquet"


@dataclass(frozen=True)
class HubFile:
    """One parquet file of a data set at a commit; fetched when it is first read, and kept in the hub's own cache."""

    dataset: str
    name: str
    commit: str
    field: str | None

    def scan(self, mark: int = 0) -> Iterator[tuple[int, Item]]:
        from huggingface_hub import hf_hub_download

        try:
            path = hf_hub_download(
                self.dataset, self.name, repo_type="dataset", revision=self.commit, local_files_only=offline()
            )
        except Exception as error:  # whatever the client raises, the user needs the same three facts
            raise _failed(self.dataset, error) from error
        yield from Parquet(Path(path), self.field).scan(mark)

    def stamp(self) -> Any:
        return self.commit  # a commit never changes


def hub_source(name: str, field: str | None, split: str | None, limit: int | None) -> tuple[Source, str]:
    """The files of a data set's split, and its exact name.

    Args:
        name: ``owner/name`` or ``owner/name:config``.
        field: the column with the text, None to look for it.
        split: "train" if not given.
        limit: how many texts are wanted; None where one file holds them all.

    Raises:
        NotServed: the hub's client is missing. DownloadFailed: offline, or the hub cannot be reached.
        UnknownName: no such config or split. BadInput: no parquet files, or several and no limit.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        why = "reading the hub needs huggingface_hub, which is not installed"
        raise NotServed(f"data set {name!r}", why, "run `python -m pip install 'mechanome[hub]'`") from error
    dataset, _, config = name.partition(":")
    if offline():
        raise _failed(dataset, "MECHANOME_OFFLINE is set")
    try:
        about = HfApi().dataset_info(dataset, revision=_BRANCH)
    except Exception as error:  # as above
        raise _failed(dataset, error) from error
    files = [PurePosixPath(file.rfilename) for file in about.siblings or () if file.rfilename.endswith(".parquet")]
    configs = sorted({file.parts[0] for file in files if len(file.parts) == 3})
    if not configs:
        raise BadInput(f"data set {dataset!r}", "the hub has no parquet files of it", "download it and name its files")
    if not config and len(configs) > 1 and "default" not in configs:
        raise BadInput(f"data set {dataset!r}", f"it has {', '.join(configs)}", f"name one: {dataset}:{configs[0]}")
    config = config or ("default" if "default" in configs else configs[0])
    if config not in configs:
        raise UnknownName(f"config {config!r} of {dataset}", "it has no such config", nearest(config, configs))
    splits = sorted({file.parts[1] for file in files if file.parts[0] == config})
    split = split or "train"
    if split not in splits:
        raise UnknownName(f"split {split!r} of {dataset}:{config}", "it has no such split", nearest(split, splits))
    commit = str(about.sha)
    chosen = sorted(str(file) for file in files if file.parts[:2] == (config, split))
    if limit is None and len(chosen) > 1:
        why = f"{dataset}:{config}/{split} has {len(chosen)} files, which would all be fetched"
        raise BadInput("limit", why, "say how many texts are wanted, as in limit=10_000")
    parts = tuple(HubFile(dataset, file, commit, field) for file in chosen)
    return Files(parts), f"{dataset}:{config}/{split}@{commit}"


def _failed(dataset: str, error: object) -> DownloadFailed:
    why = str(error).strip().partition("\n")[0] or type(error).__name__
    fix = "check the network and the name, or download its files once and name their folder"
    return DownloadFailed(f"hub data set {dataset!r}", why, fix)
