"""Dictionaries restated densely, for autograd to differentiate: `[row, latent]` everywhere, no sparse product.

Independent of the code under test but for the parameters: each selector, decoder, penalty and the auxiliary loss is
written again from its formula.
"""

import torch
from torch.nn import functional


def straight(pre, threshold, bandwidth, scale):
    """Zero in value; its gradient in the threshold is `-scale box(pre - threshold)`."""
    box = ((pre - threshold).abs() < bandwidth / 2) / bandwidth
    return (-scale * box).detach() * (threshold - threshold.detach())


def top_mask(pre, k):
    return torch.zeros_like(pre).scatter(1, pre.topk(k, dim=1).indices, 1.0)


def batch_mask(pre, k):
    chosen = pre.flatten().topk(k * len(pre)).indices
    return torch.zeros(pre.numel()).index_fill(0, chosen, 1.0).view_as(pre)


def values(model, name, pre):
    """Dense codes of dense pre-activations."""
    selector = model.selector
    if name == "relu":
        return pre.relu()
    if name == "topk":
        return (pre * top_mask(pre, selector.k)).relu()
    if name == "batchtopk":
        return (pre * batch_mask(pre, selector.k)).relu()
    if name.startswith("jumprelu"):
        threshold = selector.threshold
        jump = straight(pre, threshold, selector.bandwidth, threshold)
        return pre * (pre > threshold) + jump
    gate = (pre > 0).float()
    return gate * (selector.r_mag.exp() * (pre - model.b_enc) + selector.b_mag).relu()


def expand(decoder, z):
    """What a decoder makes of dense codes, of all latents."""
    if hasattr(decoder, "W_dec"):
        return z @ decoder.W_dec + decoder.b_dec
    us = [decoder.U[:, :rank] for rank in decoder.ranks]
    if not decoder.shared:
        us = list(decoder.U.split(decoder.ranks, dim=1))
    out, total = decoder.C, z @ us[0] @ decoder.C[0].T
    for power, strength in zip((2, 3), decoder.strengths):
        rank, factor = decoder.ranks[power - 1], 1.0
        for n in range(power):
            factor = factor * (z @ us[0 if decoder.shared else n])[:, :rank]
        total = total + strength * factor @ out[power - 1].T
    return total + decoder.b_dec


def norms(decoder):
    return (expand(decoder, torch.eye(decoder.table.shape[0])) - decoder.b_dec).norm(dim=1)


def loss(model, name, x, weight, l0=None):
    """Reconstruction over all prefixes, and the penalty that belongs to a selector."""
    pre = (x - model.b_dec) @ model.W_enc.T + model.b_enc
    z = values(model, name, pre)
    ends = torch.tensor(model.decoder.groups or (pre.shape[1],)).cumsum(0).tolist()
    total = 0.0
    for end in ends:
        prefix = functional.pad(z[:, :end], (0, pre.shape[1] - end))
        total = total + (x - expand(model.decoder, prefix)).square().sum(1).mean() / len(ends)
    return total + weight * penalty(model, name, x, pre, z, l0)


def penalty(model, name, x, pre, z, l0):
    decoder = model.decoder
    if name == "relu":
        return (z * norms(decoder)).sum(1).mean()
    if name == "jumprelu-tanh":
        count = (4.0 * z * norms(decoder).detach()).tanh().sum(1).mean()
        return count if l0 is None else (count / l0 - 1).square()
    if name == "jumprelu-l0":
        threshold = model.selector.threshold
        step = (pre > threshold) + straight(pre, threshold, model.selector.bandwidth, 1.0)
        count = step.sum(1).mean()
        return count if l0 is None else (count / l0 - 1).square()
    return 0.0


def gate_terms(model, x, l1):
    """The two further terms of a gated autoencoder with a linear decoder."""
    gates = ((x - model.b_dec) @ model.W_enc.T + model.b_enc).relu()
    through = gates @ model.decoder.W_dec.detach() + model.b_dec.detach()
    shrink = (gates * model.decoder.W_dec.norm(dim=1).detach()).sum(1).mean()
    return l1 * shrink + (x - through).square().sum(1).mean()


def auxiliary(model, x, error, dead, k):
    """Dead latents alone, the k largest in each row, against the error."""
    few = min(k, len(dead))
    pre = (x - model.b_dec.detach()) @ model.W_enc.T + model.b_enc
    mask = torch.full_like(pre, float("-inf"))
    mask[:, dead] = 0
    chosen = (pre + mask).topk(few, dim=1).indices
    z = (pre * torch.zeros_like(pre).scatter(1, chosen, 1.0)).relu()
    guess = expand(model.decoder, z) - model.b_dec
    return few / k * (error - guess).square().sum(1).mean()
