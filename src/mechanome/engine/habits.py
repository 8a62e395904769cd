"""What users of other tools type first, and what it is called here."""

from __future__ import annotations

MODEL: dict[str, str] = {
    "blocks": "model.run(x, capture='resid_post.*'), or model.module for the modules themselves",
    "cfg": "model.config, model.n_layers, model.architecture",
    "d_model": "model.config.hidden_size",
    "forward": "model.run(x).logits",
    "hooks": "edits= of model.run and model.generate",
    "n_heads": "model.config.num_attention_heads",
    "run_with_cache": "model.run(x, capture=['resid_post.*', 'z.*'])",
    "run_with_hooks": "model.run(x, edits=[mn.Patch(...), mn.Custom(site, function)])",
    "to": "mn.load(..., device=..., dtype=...)",
    "to_single_token": "model.single_token(text)",
    "to_str_tokens": "model.str_tokens(text)",
    "to_string": "model.tokenizer.decode(ids)",
    "to_tokens": "model.encode(text).input_ids",
    "tokens": "model.str_tokens(text), model.encode(text).input_ids",
    "trace": "model.run(x, capture=[...], edits=[...])",
    **{f"W_{m}": f"model.weight('W_{m}.5').value, one layer at a time" for m in ("Q", "K", "V", "O", "in", "out")},
    "W_E": "model.weight('W_E').value",
    "W_U": "model.weight('W_U').value",
}

RUN: dict[str, str] = {
    "cache": "run[site]",
    "items": "run.sites, run[site]",
    "keys": "run.sites",
    "probs": "run.logits.softmax(-1)",
    "str_tokens": "run.batch.tokens",
    "tokens": "run.batch.tokens",
}


def hint(owner: str, name: str, table: dict[str, str]) -> AttributeError:
    """The error for a name that does not exist, with what to write instead where a habit explains it."""
    instead = table.get(name)
    return AttributeError(f"{owner} has no '{name}'" + (f"; write {instead}" if instead else ""))
