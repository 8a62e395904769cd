"""sparsify, by its own trainer: TopK with Adam, the same constant learning rate as the others, nothing saved.

Its trainer reads activations from a hooked model. Where activations are given, the model is an embedding that holds
them, and its token ids are their rows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn

from benchmarks.dictionary_engines.common import Data, Request
from benchmarks.harness.serve import Work, serve

with redirect_stdout(sys.stderr):  # it prints when it is imported
    from sparsify import SparseCoder, SparseCoderConfig, TrainConfig, Trainer


class Rows(nn.Module):
    """Activations as a model: token i is row i."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(rows)

    @property
    def base_model(self) -> nn.Module:
        return self

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        return {"input_ids": torch.zeros(1, 1, dtype=torch.long)}

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids)


class _Unsaved(Trainer):
    """Writing files is not timed: the others are asked for none."""

    def save(self) -> None:
        return


def steps(data: Data, args: Mapping[str, Any]) -> Work:
    """Train for some steps."""
    request = Request.of(data, args)
    ids = torch.arange(len(request.train)).view(-1, 1, request.batch)
    dataset = Dataset.from_dict({"input_ids": ids.squeeze(1).tolist()}).with_format("torch")
    config = _config(request.directions.shape[0], request.k, request.lr, hookpoints=["table"], batch_size=1)
    trainer = _trainer(config, dataset, Rows(request.train), [request.directions])
    coder = next(iter(trainer.saes.values()))

    def work() -> Any:
        trainer.fit()
        return lambda: {"fvu": request.fvu(lambda x: _reconstructed(coder, x))}

    return work


def _config(width: int, k: int, lr: float, **more: Any) -> TrainConfig:
    coder = SparseCoderConfig(num_latents=width, k=k)
    return TrainConfig(coder, optimizer="adam", lr=lr, lr_warmup_steps=0, log_to_wandb=False, **more)


def _trainer(config: TrainConfig, dataset: Dataset, model: Any, starts: list[Tensor]) -> Trainer:
    """Their trainer at the start of all; its schedule, which ends at zero, is taken off."""
    trainer = _Unsaved(config, dataset, model)
    trainer.lr_schedulers = []
    for coder, start in zip(trainer.saes.values(), starts, strict=True):
        with torch.no_grad():
            coder.encoder.weight.copy_(start)
            coder.W_dec.copy_(start)
    return trainer


def _reconstructed(coder: SparseCoder, x: Tensor) -> Tensor:
    found = coder.encode(x)
    return coder.decode(found.top_acts, found.top_indices)


if __name__ == "__main__":
    serve(Data.of, {"steps": steps}, "eai-sparsify")
