"""What activations were made from, as JSON whose hash names the store: the same recipe finds the same store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import torch

from mechanome.activations.drop import Drop
from mechanome.activations.reader import Reader
from mechanome.engine.model import Model


def weights_sha256(model: Model) -> str:
    """Of every parameter and buffer: name, type, shape and content."""
    digest = sha256()
    for name, x in sorted(model.module.state_dict().items()):
        digest.update(f"{name} {x.dtype} {list(x.shape)}".encode())
        data = x.detach().cpu().contiguous()
        digest.update(data.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def recipe(reader: Reader, texts: str, context: int, drop: Drop, **storage: Any) -> dict[str, Any]:
    """The recipe of a store.

    Args:
        reader: what reads. texts: what the texts are called; the tokens themselves decide, not their name.
        context: most tokens of a sequence. drop: what is left out. storage: how rows are kept.

    Returns:
        the recipe, with its hash as "id".
    """
    model, data = reader.model, reader.data
    facts = {
        "model_sha256": weights_sha256(model), "sites": list(reader.sites), "compute": reader.compute,
        "model_dtype": str(model.dtype).removeprefix("torch."), "packing": data.packing, "context": context,
        "first": data.first, "data": data.sha256, "drop": drop.record(), **storage,
    }  # fmt: skip
    names = {
        "model": model.name, "model_source": getattr(model.source, "sha256", None), "texts": texts,
        "tokenizer_sha256": _tokenizer(model.tokenizer), "template_sha256": _template(model.tokenizer),
        "tokens": data.tokens, "sequences": len(data), "truncated": data.truncated,
    }  # fmt: skip
    return {"id": _sha(json.dumps(facts, sort_keys=True)), **names, **facts}


def _tokenizer(tokenizer: Any) -> str | None:
    inner = getattr(tokenizer, "backend_tokenizer", None)
    return None if inner is None else _sha(inner.to_str())


def _template(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    return None if template is None else _sha(json.dumps(template, sort_keys=True))


def _sha(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def named_texts(source: Any) -> tuple[Iterable[Any], str]:
    """Texts to read and what they are called: rows of token ids as they are, everything else as `texts` opens it."""
    from mechanome.activations.texts import texts

    rows = isinstance(source, torch.Tensor) or (
        isinstance(source, list | tuple) and bool(source) and _is_ids(source[0])
    )
    if rows:
        return source, "token ids"
    found = texts(source)
    return found, found.id


def _is_ids(item: Any) -> bool:
    return isinstance(item, torch.Tensor) or (isinstance(item, list) and bool(item) and isinstance(item[0], int))
