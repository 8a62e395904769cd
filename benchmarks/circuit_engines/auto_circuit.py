"""auto-circuit 1.0: masks on the inputs of readers, on TransformerLens's former engine with raw GPT-2 weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from auto_circuit.data import PromptDataLoader, PromptDataset
from auto_circuit.prune import run_circuits
from auto_circuit.prune_algos.ACDC import acdc_prune_scores
from auto_circuit.prune_algos.mask_gradient import mask_gradient_prune_scores
from auto_circuit.types import PatchType
from auto_circuit.utils.ablation_activations import src_ablations
from auto_circuit.utils.graph_utils import patch_mode, patchable_model, set_all_masks
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

from benchmarks.circuit_engines.common import Layout, Pairs, start
from benchmarks.engines.common import load
from benchmarks.harness.serve import Work, serve


def open_model(settings: Mapping[str, Any]) -> Any:
    """As its own loader prepares a model, but without folding anything into the weights."""
    start(settings)
    plain = load(settings)
    config = plain.config
    cfg = HookedTransformerConfig(
        n_layers=config.n_layer,
        n_heads=config.n_head,
        d_model=config.n_embd,
        d_head=config.n_embd // config.n_head,
        d_mlp=4 * config.n_embd,
        d_vocab=config.vocab_size,
        n_ctx=config.n_positions,
        eps=config.layer_norm_epsilon,
        act_fn="gelu_new",
        normalization_type="LN",
        original_architecture="GPT2LMHeadModel",
        use_attn_result=True,
        use_split_qkv_input=True,
        use_hook_mlp_in=True,
        device="cpu",
    )
    model = HookedTransformer(cfg)
    unchanged = dict.fromkeys(("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases"), False)
    model.load_and_process_state_dict(convert_gpt2_weights(plain, cfg), **unchanged)
    for weight in model.parameters():
        weight.requires_grad_(False)
    made = patchable_model(model.eval(), factorized=True, slice_output="last_seq", separate_qkv=True)
    # A set of edges has another order in every process; ACDC's answer depends on it, so it is ours.
    layout = _layout(made)
    made.edges = sorted(made.edges, key=lambda edge: (-_place(layout, edge.dest), -edge.src.src_idx))
    return made


def mask_gradients(model: Any, args: Mapping[str, Any]) -> Work:
    """`mask_gradient_prune_scores`, at masks of 0 (EAP) or summed over `steps + 1` masks from 0 to 1."""
    loader, layout = _loader(Pairs.of(args)), _layout(model)
    steps = args.get("steps")
    points = {"mask_val": 0.0} if steps is None else {"integrated_grad_samples": steps}

    def work() -> Any:
        found = mask_gradient_prune_scores(model, loader, None, "logit", "avg_diff", **points)
        # Its loss is minus the metric.
        return lambda: {"edge": -_matrix(layout, found)}

    return work


def exact(model: Any, args: Mapping[str, Any]) -> Work:
    """The effects of `edges`, `[[source, target]]`: one forward pass an edge, its mask set to 1."""
    pairs, layout = Pairs.of(args), _layout(model)
    by_place = {(e.src.src_idx, _place(layout, e.dest)): e for e in model.edges}
    edges = [by_place[s, t] for s, t in args["edges"]]

    def work() -> dict[str, Any]:
        effects = layout.matrix()
        patched = src_ablations(model, pairs.corrupted)
        set_all_masks(model, 0.0)
        with torch.inference_mode(), patch_mode(model, patched):
            base = pairs.metric(model(pairs.clean)[model.out_slice])
            for edge, (source, target) in zip(edges, args["edges"]):
                edge.patch_mask(model).data[edge.patch_idx] = 1.0
                effects[source, target] = (pairs.metric(model(pairs.clean)[model.out_slice]) - base).mean()
                edge.patch_mask(model).data[edge.patch_idx] = 0.0
        return {"edge": effects, "clean": base}

    return work


def evaluate(model: Any, args: Mapping[str, Any]) -> Work:
    """`run_circuits` of the largest scores of a file, one for each of `sizes`, other edges patched."""
    pairs, layout = Pairs.of(args), _layout(model)
    loader, ranked = _loader(pairs), torch.tensor(np.load(args["ranking"])["edge"])
    scores = model.new_prune_scores()
    for name, mask in scores.items():
        mask.copy_(_part(layout, ranked, name)[..., : mask.shape[-1]].reshape(mask.shape))

    def work() -> dict[str, Any]:
        found = run_circuits(model, loader, args["sizes"], scores, PatchType.TREE_PATCH)
        return {"circuit": torch.stack([pairs.metric(next(iter(by_batch.values()))) for by_batch in found.values()])}

    return work


def search(model: Any, args: Mapping[str, Any]) -> Work:
    """`acdc_prune_scores` at one threshold, a power of ten: its scores are infinite where an edge stays."""
    loader, layout = _loader(Pairs.of(args)), _layout(model)
    exponent = round(math.log10(args["threshold"]))

    def work() -> Any:
        found = acdc_prune_scores(model, loader, None, tao_exps=[exponent], tao_bases=[1])
        return lambda: {"kept": _matrix(layout, found).isinf().float()}

    return work


def _loader(pairs: Pairs) -> PromptDataLoader:
    """All pairs as one batch."""
    count = len(pairs.clean)
    answers, foils = ([torch.tensor([token])] * count for token in (pairs.answer, pairs.foil))
    dataset = PromptDataset(pairs.clean, pairs.corrupted, answers, foils)
    return PromptDataLoader(dataset, seq_len=None, diverge_idx=0, batch_size=count, shuffle=False)


def _layout(model: Any) -> Layout:
    return Layout(model.cfg.n_layers, model.cfg.n_heads)


_NAMES = {"hook_q_input": "q", "hook_k_input": "k", "hook_v_input": "v", "hook_mlp_in": "mlp"}


def _columns(layout: Layout, module: str) -> slice:
    """The targets of a module, named such as `blocks.3.hook_q_input`."""
    _, layer, name = module.split(".")
    if name == "hook_resid_post":
        return slice(layout.target("logits"), layout.target("logits") + 1)
    first = layout.target(_NAMES[name], int(layer))  # type: ignore[arg-type]
    return slice(first, first + (1 if name == "hook_mlp_in" else layout.heads))


def _place(layout: Layout, target: Any) -> int:
    return _columns(layout, target.module_name).start + (target.head_idx or 0)


def _part(layout: Layout, matrix: Tensor, module: str) -> Tensor:
    """A matrix of edges at the targets of a module, `[target, source]`."""
    return matrix[:, _columns(layout, module)].T


def _matrix(layout: Layout, scores: Mapping[str, Tensor]) -> Tensor:
    """Scores by module, `[(target,) source]`, as one matrix."""
    found = torch.zeros(layout.shape)
    for name, values in scores.items():
        found[: values.shape[-1], _columns(layout, name)] = values.reshape(-1, values.shape[-1]).T
    return found


if __name__ == "__main__":
    tasks = {"mask_gradients": mask_gradients, "exact": exact, "evaluate": evaluate, "search": search}
    serve(open_model, tasks, "auto-circuit")
