"""Small networks that know nothing of transformers: what a user brings through ``path:`` sites or an own table.

A causal transformer with its own grouped attention, a recurrent language model whose layers return tuples, and a
residual image classifier. Their forwards return bare logits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

VOCAB = 97


class OwnAttention(nn.Module):
    """Grouped causal attention written out by hand."""

    def __init__(self, d_model: int, n_heads: int, n_kv: int, d_head: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv, self.d_head = n_heads, n_kv, d_head
        self.q = nn.Linear(d_model, n_heads * d_head)
        self.k = nn.Linear(d_model, n_kv * d_head)
        self.v = nn.Linear(d_model, n_kv * d_head)
        self.o = nn.Linear(n_heads * d_head, d_model)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        def heads(y: Tensor, n: int) -> Tensor:
            return y.unflatten(-1, (n, self.d_head)).transpose(1, 2).repeat_interleave(self.n_heads // n, dim=1)

        q, k, v = heads(self.q(x), self.n_heads), heads(self.k(x), self.n_kv), heads(self.v(x), self.n_kv)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(self.d_head)).masked_fill(~visible, torch.finfo(x.dtype).min)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class OwnBlock(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.pre_attn, self.pre_ff = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = OwnAttention(d_model, n_heads=4, n_kv=2, d_head=12)
        self.ff = nn.Sequential(nn.Linear(d_model, 3 * d_model), nn.GELU(), nn.Linear(3 * d_model, d_model))

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        x = x + self.attn(self.pre_attn(x), visible)
        return x + self.ff(self.pre_ff(x))


class OwnTransformer(nn.Module):
    """A causal language model with its own attention and its own names; returns logits ``[row pos vocab]``."""

    def __init__(self, d_model: int = 32, n_layers: int = 3) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d_model), nn.Embedding(32, d_model)
        self.stack = nn.ModuleList(OwnBlock(d_model) for _ in range(n_layers))
        self.out_norm, self.unembed = nn.LayerNorm(d_model), nn.Linear(d_model, VOCAB)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        n = input_ids.shape[1]
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        visible = torch.ones(n, n, dtype=torch.bool).tril() & mask.bool()[:, None, None, :]
        x = self.tok(input_ids) + self.pos((mask.cumsum(-1) - 1).clamp(min=0))
        for block in self.stack:
            x = block(x, visible)
        return self.unembed(self.out_norm(x))


class LSTMLanguageModel(nn.Module):
    """Three residual recurrent layers over tokens; the forward returns logits ``[row pos vocab]``."""

    def __init__(self, d_model: int = 32, n_layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, d_model)
        self.layers = nn.ModuleList(nn.LSTM(d_model, d_model, batch_first=True) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.head(self.norm(x))


class ConvBlock(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out)
        self.conv2, self.bn2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False), nn.BatchNorm2d(c_out)
        same = stride == 1 and c_in == c_out
        self.skip = nn.Identity() if same else nn.Conv2d(c_in, c_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.skip(x)).relu()


class ConvNet(nn.Module):
    """A residual image classifier, batch norm with scattered running statistics; returns logits ``[row class]``."""

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([ConvBlock(8, 8, 1), ConvBlock(8, 16, 2), ConvBlock(16, 16, 1)])
        self.fc = nn.Linear(16, n_classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.stem(pixel_values)
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))
