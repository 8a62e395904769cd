"""The trained baseline of paper 05's study: a TopK autoencoder of one layer's MLP output, and what it costs."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from mechanome.core import Parts, fit, seeded
from mechanome.engine import Model

WINDOW = 64
"""Tokens of a window of text."""
LATENTS = 8
"""Latents for each feature of the stream."""
ACTIVE = 32
_ENOUGH = 0.3
_CHECKED_EVERY = 10
_BATCH = 512


def windows(model: Model, n: int) -> Tensor:
    """The first windows of Python's own documentation, `[window, pos]`; the first token is the model's own first."""
    from pydoc_data.topics import topics

    ids: list[int] = []
    for name in sorted(topics):
        ids += model.tokenizer(topics[name], add_special_tokens=False)["input_ids"]
        if len(ids) >= n * (WINDOW - 1):
            break
    first = model.encode("The").input_ids[0, 0]
    rows = torch.tensor(ids[: n * (WINDOW - 1)]).reshape(-1, WINDOW - 1)
    return torch.cat([first.expand(len(rows), 1), rows], 1)


def outputs(model: Model, layer: int, n: int) -> Tensor:
    """The MLP's outputs on the windows, without their first position, `[token, d_model]`."""
    found = [
        model.run(some, capture=f"mlp_out.{layer}", logits=False)[f"mlp_out.{layer}"][:, 1:].flatten(0, 1)
        for some in windows(model, n).split(16)
    ]
    return torch.cat(found)


class TopK(nn.Module):
    """A TopK autoencoder with a centre."""

    def __init__(self, data: Tensor) -> None:
        super().__init__()
        width = data.shape[1]
        self.encoder = nn.Linear(width, LATENTS * width)
        self.decoder = nn.Parameter(nn.functional.normalize(self.encoder.weight.detach().clone(), dim=1))
        self.centre = nn.Parameter(data.mean(0))
        with torch.no_grad():
            self.encoder.weight.copy_(self.decoder)
            self.encoder.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        best = self.encoder(x - self.centre).topk(ACTIVE, dim=-1)
        rows = self.decoder[best.indices]
        return torch.einsum("bk,bkd->bd", torch.relu(best.values), rows) + self.centre


def trained(data: Tensor, seed: int, steps: int) -> dict[str, Any]:
    """Train until the held-out fraction of variance unexplained is 0.3, or the steps end.

    Args:
        data: `[token, d_model]`; the last tenth is held out. seed: of weights and batches. steps: at most.

    Returns:
        fvu, steps, seconds of processor time, and whether it reached 0.3.
    """
    scaled = data / data.std()
    held, own = scaled[-len(scaled) // 10 :], scaled[: -len(scaled) // 10]
    with seeded(seed):
        model = TopK(own)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    whole = (held - held.mean(0)).square().sum()

    def step(_: int) -> dict[str, Tensor]:
        x = own[torch.randint(len(own), (_BATCH,), generator=generator)]
        loss = (model(x) - x).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    start, done, fvu, state = time.process_time(), 0, 1.0, Parts(model=model, optimizer=optimizer)
    while done < steps and fvu > _ENOUGH:
        some = min(_CHECKED_EVERY, steps - done)
        fit(step, state, steps=some, seed=seed + done, quiet=True)
        done += some
        with torch.no_grad():
            fvu = float((model(held) - held).square().sum() / whole)
    return {"fvu": fvu, "steps": done, "seconds": time.process_time() - start, "reached": fvu <= _ENOUGH}
