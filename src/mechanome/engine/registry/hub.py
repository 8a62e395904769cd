"""Models of the Hugging Face hub: only configuration, tokenizer and safetensors files are ever fetched."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from mechanome.core.errors import BadInput, DownloadFailed, UnknownModel

_DATA = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def snapshot(id: str, offline: bool) -> tuple[Path, str]:
    """The local copy of a hub model, downloaded if need be.

    Args:
        id: ``owner/name``.
        offline: use only what the hub's own cache holds.

    Returns:
        The folder and the commit it was taken from.

    Raises:
        UnknownModel: the hub has no such model, or none that may be seen without a login.
        BadInput: the model's terms must be accepted first.
        DownloadFailed: no network, or offline and not in the hub's cache.
    """
    try:
        folder = Path(snapshot_download(id, allow_patterns=list(_DATA), local_files_only=offline))
    except GatedRepoError as error:
        fix = f"accept them on https://huggingface.co/{id} and run `hf auth login`"
        raise BadInput(f"hub model {id!r}", "its terms must be accepted first", fix) from error
    except RepositoryNotFoundError as error:
        raise UnknownModel(f"hub model {id!r}", "the hub has none of this name", "check the spelling") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        why = "the network is switched off and the hub's cache does not hold it" if offline else _first_line(error)
        fix = "open it once with a network, or copy its folder here and name the folder"
        raise DownloadFailed(f"hub model {id!r}", why, fix) from error
    return folder, folder.name


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
