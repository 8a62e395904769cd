"""Cross-layer transcoders: latents of one layer, written to it and to all later ones (Ameisen et al. 2025).

A set of per-layer transcoders is the special case in which each layer writes to itself alone. All layers are one
dictionary: it reads their inputs side by side, `[row, layer * d]`, and latent `layer * F + j` is the j-th of its layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mechanome.core.errors import BadInput
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.spec import DictionarySpec


class CrossLayerTranscoder(Dictionary):
    """A stack of layers with thresholded latents.

    Args:
        spec: its settings are `cross` (whether a layer also writes to later ones) and `skip` (whether each layer adds
            a linear map of its input); one site in and one out a layer.

    Raises:
        BadInput: sites and sizes that do not make equal layers.
    """

    architecture = "cross_layer_transcoder"

    def __init__(self, spec: DictionarySpec) -> None:
        super().__init__(spec)
        layers = len(spec.site_widths)
        if not layers or spec.d_in % layers or spec.width % layers or set(spec.site_widths) != {spec.d_out // layers}:
            sizes = f"d_in {spec.d_in}, width {spec.width}, site widths {list(spec.site_widths)}"
            raise BadInput("a cross-layer transcoder", sizes, "every layer must have the same sizes")
        self.layers, self.d, self.d_layer = layers, spec.d_in // layers, spec.d_out // layers
        self.latents = spec.width // layers
        reach = [layers - layer if spec.settings["cross"] else 1 for layer in range(layers)]
        # Not named W_enc, W_skip ...: those are matrices of the whole dictionary, of a LinearEncoder or a Skip.
        self.reads = nn.Parameter(torch.zeros(layers, self.latents, self.d))
        self.read_bias = nn.Parameter(torch.zeros(layers, self.latents))
        self.threshold = nn.Parameter(torch.zeros(layers, self.latents))
        self.writes = nn.ParameterList([torch.zeros(self.latents, n, self.d_layer) for n in reach])
        self.write_bias = nn.Parameter(torch.zeros(layers, self.d_layer))
        self.skips = nn.Parameter(torch.zeros(layers, self.d_layer, self.d)) if spec.settings["skip"] else None

    @property
    def parts(self) -> dict[str, int]:
        """Width of each site written."""
        names = self.spec.sites_out or tuple(str(layer) for layer in range(self.layers))
        return dict(zip(names, self.spec.site_widths))

    @property
    def thresholds(self) -> Tensor:
        """Above which pre-activations are active `[latent]`."""
        return self.threshold.flatten()

    def pre(self, x: Tensor) -> Tensor:
        """Pre-activations `[row, latent]` of activations `[..., d_in]`."""
        rows = self.rows_of(x).unflatten(1, (self.layers, self.d))
        return (torch.einsum("rld,lfd->rlf", rows, self.reads) + self.read_bias).flatten(1)

    def encode_normed(self, x: Tensor) -> SparseCodes:
        pre = self.pre(x)
        return SparseCodes.of_dense(torch.where(pre > self.thresholds, pre, 0.0))

    def decode_normed(self, codes: SparseCodes, x: Tensor | None) -> Tensor:
        z = codes.dense().unflatten(1, (self.layers, self.latents))
        out = list(self.write_bias.expand(codes.rows, -1, -1).unbind(1))
        for source, decoder in enumerate(self.writes):
            for step in range(decoder.shape[1]):
                out[source + step] = out[source + step] + z[:, source] @ decoder[:, step]
        if self.skips is not None:
            if x is None:
                raise BadInput("decode", "a skip connection reads the input too", "pass x")
            inputs = x.unflatten(1, (self.layers, self.d))
            out = [y + inputs[:, layer] @ self.skips[layer].T for layer, y in enumerate(out)]
        return torch.cat(out, dim=1)

    def directions(self) -> Tensor:
        rows = []
        for source, decoder in enumerate(self.writes):
            row = decoder.new_zeros(self.latents, self.layers, self.d_layer)
            row[:, source : source + decoder.shape[1]] = decoder
            rows.append(row.flatten(1))
        return torch.cat(rows)
