"""SAELens, by its own trainer and runner: TopK, its default settings but the start, the learning rate and no W&B."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sae_lens import LoggingConfig, TopKTrainingSAE, TopKTrainingSAEConfig
from sae_lens.config import SAETrainerConfig
from sae_lens.load_model import load_model
from sae_lens.multi_sae_training_runner import MultiSAETrainingRunner, MultiSAETrainingRunnerConfig
from sae_lens.training.sae_trainer import SAETrainer
from torch import Tensor

from benchmarks.dictionary_engines.common import Data, Request, directions, fvu
from benchmarks.harness.serve import Work, serve

_SILENT = LoggingConfig(log_to_wandb=False)


def steps(data: Data, args: Mapping[str, Any]) -> Work:
    """Train for some steps; `sparse` asks for its sparse activations, `autocast` for bfloat16."""
    request = Request.of(data, args)
    sae = TopKTrainingSAE(_config(request.directions.shape, request.k, args.get("sparse", False)))
    _start(sae, request.directions, request.mean)
    config = SAETrainerConfig(
        total_training_samples=request.steps * request.batch,
        train_batch_size_samples=request.batch,
        lr=request.lr,
        lr_end=request.lr,
        autocast=args.get("autocast", False),
        logger=_SILENT,
    )
    trainer = SAETrainer(config, sae, request.batches())

    def work() -> Any:
        trainer.fit()
        return lambda: {"fvu": request.fvu(lambda x: _decoded(sae, x))}

    return work


def end_to_end(data: Data, args: Mapping[str, Any]) -> Work:
    """Text to several SAEs by its runner of many on one stream, the model opened before the clock starts.

    It excludes special tokens, as the others do, whose massive norm would be all that is learned.
    """
    hook = f"model.layers.{args['layer']}"
    model = load_model("AutoModelForCausalLM", args["folder"], "cpu", {"dtype": torch.float32}, [hook])
    shape, count = (args["width"], data.rows.shape[1]), args["count"]
    autocast = args.get("autocast", False)
    prompts = args["batch"] // args["context"]
    config = MultiSAETrainingRunnerConfig(
        saes={str(seed): _config(shape, args["k"], False, "expected_average_only_in") for seed in range(count)},
        hook_names=hook,
        model_name=args["folder"],
        model_class_name="AutoModelForCausalLM",
        streaming=False,
        context_size=args["context"],
        training_tokens=args["tokens"],
        train_batch_size_tokens=args["batch"],
        store_batch_size_prompts=prompts,
        n_batches_in_buffer=2 * args["batch"] // args["context"],  # it counts batches of one prompt
        n_batches_for_norm_estimate=1,
        exclude_special_tokens=True,
        autocast=autocast,
        autocast_lm=autocast,
        lr=args["lr"],
        logger=_SILENT,
        checkpoint_path=None,
        output_path=None,
    )
    texts = Dataset.from_dict({"text": Path(args["texts"]).read_text().split("\n\n")})

    def work() -> Any:
        runner = MultiSAETrainingRunner(config, override_dataset=texts, override_model=model)
        for seed, sae in enumerate(runner.saes.values()):
            _start(sae, directions(*shape, seed), data.rows.mean(0))
        trained = runner.run().values()
        return lambda: {"fvu": [fvu(data.raw_held, lambda x, sae=sae: _decoded(sae, x)) for sae in trained]}

    return work


def _config(shape: Any, k: int, sparse: bool, normalize: str = "none") -> TopKTrainingSAEConfig:
    """Decoder rows of norm 1, as the others start with; all else by default.

    Sparse activations cannot be rescaled by decoder norms on a CPU (`aten::view` of a sparse gradient), so are not.
    """
    return TopKTrainingSAEConfig(
        d_in=shape[1],
        d_sae=shape[0],
        k=k,
        use_sparse_activations=sparse,
        rescale_acts_by_decoder_norm=not sparse,
        decoder_init_norm=1.0,
        normalize_activations=normalize,
    )


def _start(sae: TopKTrainingSAE, directions: Tensor, mean: Tensor) -> None:
    with torch.no_grad():
        sae.W_dec.copy_(directions)
        sae.W_enc.copy_(directions.T)
        sae.b_enc.zero_()
        sae.b_dec.copy_(mean)


def _decoded(sae: TopKTrainingSAE, x: Tensor) -> Tensor:
    acts = sae.encode(x)
    return sae.decode(acts.to_dense() if acts.is_sparse else acts)


if __name__ == "__main__":
    serve(Data.of, {"steps": steps, "end_to_end": end_to_end}, "sae-lens")
