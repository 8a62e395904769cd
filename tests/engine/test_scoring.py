"""Teacher-forced log-probabilities equal a token-by-token loop, whatever the batch, the budget and the edits."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Sequence as Together
from torch import Tensor
from transformers import GPT2Model, PreTrainedTokenizerFast

from families import FAMILIES, build
from mechanome.core.errors import BadInput, BudgetTooSmall, NotServed
from mechanome.engine import teacher
from mechanome.engine.edits import Add, AttentionKnockout, Edit, FromRows, Patch, Scale
from mechanome.engine.generation import generate
from mechanome.engine.model import Model
from mechanome.engine.scoring import OptionScores, logprob, score_options

CAUSAL = [n for n, f in FAMILIES.items() if f.kind in ("causal", "ssm")]
PROMPTS = [[11, 12, 13, 14, 15, 16, 17, 18], [21, 22, 23], [31, 32, 33, 34, 35]]
ANSWERS = [[41, 42, 43], [44], [45, 46, 47, 48]]
OPTIONS = [[41, 42, 43], [44], [45, 46]]


@cache
def opened(name: str) -> Model:
    return Model(build(name))


def vector(seed: int = 0, width: int = 32) -> Tensor:
    return 2.0 * torch.randn(width, generator=torch.Generator().manual_seed(seed))


def naive(model: Model, prompt: list[int], answer: list[int], edits: list[Edit] | None = None) -> list[float]:
    """One plain forward pass per token of the answer."""
    out = []
    for t, token in enumerate(answer):
        logits = model.run([prompt + answer[:t]], edits=edits or ()).logits
        assert logits is not None
        out.append(float(logits[0, -1].double().log_softmax(-1)[token]))
    return out


def close(a: Tensor, b: Any) -> None:
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=torch.float64), atol=1e-4, rtol=0, equal_nan=True)


@pytest.mark.parametrize("family", CAUSAL)
def test_logprob_is_the_sum_of_single_steps(family: str) -> None:
    model = opened(family)
    single = [naive(model, p, a) for p, a in zip(PROMPTS, ANSWERS)]
    each = logprob(model, PROMPTS, ANSWERS, per_token=True)
    assert each.dtype == torch.float64 and each.shape == (3, 4)
    close(each, [row + [math.nan] * (4 - len(row)) for row in single])
    close(logprob(model, PROMPTS, ANSWERS), [sum(row) for row in single])


@pytest.mark.parametrize("family", CAUSAL)
def test_options_are_scored_on_one_reading_of_the_prompt(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(family)
    edits = [Add("resid_post.1", vector(), pos="last"), Scale("resid_post.2", 0.7, phase="decode")]
    one_by_one = [[float(logprob(model, [p], [o], edits)[0]) for o in OPTIONS] for p in PROMPTS]
    close(score_options(model, PROMPTS, OPTIONS, edits=edits).logprobs, one_by_one)
    close(score_options(model, PROMPTS, OPTIONS, edits=edits, budget=600_000).logprobs, one_by_one)
    monkeypatch.setattr(teacher, "_can_share", lambda model, batch: False)
    close(score_options(model, PROMPTS, OPTIONS, edits=edits).logprobs, one_by_one)


@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma3", "gpt_oss", "jamba", "bloom"])
def test_scores_are_those_of_generation(family: str) -> None:
    model = opened(family)
    edits: list[Edit] = [Add("resid_post.1", vector(1), phase="decode"), Add("mlp_out.2", vector(2), steps=[0, 2])]
    if FAMILIES[family].registry:
        edits += [Scale("v.1", -1.0, pos="last"), *AttentionKnockout([1], -1, "generated")]
    got = generate(model, PROMPTS, max_new_tokens=4, edits=edits, eos=None)
    close(logprob(model, PROMPTS, got.tokens, edits, per_token=True), torch.stack(got.logprobs).double())
    scores = score_options(model, PROMPTS, [[t, [50, 51]] for t in got.tokens], edits=edits)
    close(scores.logprobs[:, 0], torch.stack(got.logprobs).double().sum(1))


def test_edits_of_rows_speak_of_prompts() -> None:
    model = opened("llama")
    v = vector(3)
    per_row = torch.stack([0 * v, v, -v])
    for edits, alone in (
        ([Add("resid_post.1", v, rows=[1])], [[], [Add("resid_post.1", v)], []]),
        ([Add("resid_post.1", per_row)], [[], [Add("resid_post.1", v)], [Add("resid_post.1", -v)]]),
        ([Add("resid_post.1", v, pos=[[0], [1], [2]])], [[Add("resid_post.1", v, pos=i)] for i in range(3)]),
    ):
        wanted = [[float(logprob(model, [p], [o], own)[0]) for o in OPTIONS] for p, own in zip(PROMPTS, alone)]
        close(score_options(model, PROMPTS, OPTIONS, edits=edits).logprobs, wanted)
        close(logprob(model, PROMPTS, [OPTIONS[0]] * 3, edits), [row[0] for row in wanted])
    donor = Edit("resid_post.1", "set", FromRows([1, 1, 1], pos=[0]), where=Patch("resid_post.1", v, pos=[0]).where)
    run = model.run([PROMPTS[1]], capture=["resid_post.1"])
    wanted = [sum(naive(model, p, OPTIONS[0], [Patch("resid_post.1", run, pos=0)])) for p in PROMPTS]
    close(score_options(model, PROMPTS, OPTIONS, edits=[donor]).logprobs[:, 0], wanted)
    close(logprob(model, PROMPTS, OPTIONS[0], [donor]), wanted)


def test_logits_that_nobody_reads_are_not_computed() -> None:
    model = opened("llama")
    seen: list[int] = []
    handle = model.module.lm_head.register_forward_hook(lambda m, i, o: seen.append(o.shape[1]))
    logprob(model, [list(range(5, 45))] * 2, [[41, 42, 43], [44]])
    score_options(model, [list(range(5, 45))], [[4], [5]])
    handle.remove()
    assert seen == [3, 1]
    push = torch.eye(97)[50] * 20
    wanted = naive(model, PROMPTS[1], [50, 51, 50], [Add("logits", push)])
    close(logprob(model, [PROMPTS[1]], [[50, 51, 50]], [Add("logits", push)], per_token=True)[0], wanted)
    steps = logprob(model, [PROMPTS[1]], [[50, 51, 50]], [Add("logits", push, steps=[2])], per_token=True)[0]
    assert float(steps[2]) > -0.01 > float(steps[0])


def test_a_budget_cuts_the_work_but_not_the_numbers() -> None:
    model = opened("gpt2")
    sizes: list[int] = []
    embed = model.module.transformer.wte
    handle = embed.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    rows, answers = PROMPTS * 4, ANSWERS * 4
    whole = logprob(model, rows, answers)
    assert sizes == [12]
    cut = logprob(model, rows, answers, budget=90_000)
    assert max(sizes[1:]) < 12 and len(sizes) > 3
    close(cut, whole)
    handle.remove()
    with pytest.raises(BudgetTooSmall, match="one prompt"):
        logprob(model, rows, answers, budget=1000)
    with pytest.raises(BudgetTooSmall, match="tie rows"):
        logprob(model, rows, answers, [Add("resid_post.1", vector(), rows=[2])], budget=90_000)


def test_a_uniform_model_has_known_scores() -> None:
    model = Model(build("llama"))
    torch.nn.init.zeros_(model.module.lm_head.weight)
    close(logprob(model, PROMPTS, ANSWERS), [-len(a) * math.log(97) for a in ANSWERS])
    mean = score_options(model, PROMPTS, OPTIONS, "mean")
    close(mean.scores, torch.full((3, 3), -math.log(97)))
    model.module.config.bos_token_id = 1
    close(score_options(model, PROMPTS, OPTIONS, "unconditional").scores, torch.zeros(3, 3))


def test_normalized_scores_and_ragged_options() -> None:
    model = opened("qwen3")
    plain = score_options(model, PROMPTS, OPTIONS)
    assert plain.tokens.tolist() == [[3, 1, 2]] * 3 and plain.best == plain.logprobs.argmax(1).tolist()
    close(score_options(model, PROMPTS, OPTIONS, "mean").scores, plain.logprobs / torch.tensor([3, 1, 2]))
    prior = torch.tensor([sum(naive(model, [60, 61], o)) for o in OPTIONS], dtype=torch.float64)
    fair = score_options(model, PROMPTS, OPTIONS, "unconditional", unconditional=[60, 61])
    close(fair.scores, plain.logprobs - prior)
    ragged = score_options(model, PROMPTS, [OPTIONS[:2], OPTIONS[1:], OPTIONS])
    assert isinstance(ragged, OptionScores) and ragged.logprobs.isnan().tolist() == [[False, False, True]] * 2 + [
        [False] * 3
    ]
    close(ragged.logprobs[1, :2], plain.logprobs[1, 1:])
    assert len(ragged.table().rows) == 7 and ragged.best[0] in (0, 1) and "option" in repr(ragged)


@pytest.mark.parametrize("family", ["t5", "whisper"])
def test_answers_behind_an_encoder(family: str) -> None:
    model = opened(family)
    inputs = {k: v for k, v in FAMILIES[family].inputs(model.module, 9).items() if not k.startswith("decoder")}
    edits = [Add("encoder/resid_post.1", vector(1), pos=2), Add("decoder/resid_post.1", vector(2), phase="decode")]
    got = generate(model, inputs, max_new_tokens=3, edits=edits, eos=None)
    close(logprob(model, inputs, got.tokens, edits, per_token=True), torch.stack(got.logprobs).double())
    scores = score_options(model, inputs, [[t, [50, 51]] for t in got.tokens], edits=edits)
    close(scores.logprobs[:, 0], torch.stack(got.logprobs).double().sum(1))


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    letters = ["<s>", "</s>", " ", *"abcde"]
    merges = [(" ", "a"), ("a", "b")]
    vocab = {t: i for i, t in enumerate([*letters, *(x + y for x, y in merges)])}
    raw = Tokenizer(BPE(vocab, merges))
    raw.pre_tokenizer = Together([])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def test_text_is_cut_at_true_token_boundaries() -> None:
    model = Model(build("llama"), tokenizer())
    ids: dict[str, int] = tokenizer().get_vocab()
    by_ids = logprob(model, [[ids["<s>"], ids["c"], ids["d"]]], [[ids[" a"], ids["c"]]])
    close(logprob(model, "cd", " ac"), by_ids)
    close(logprob(model, ["cd"], [" ac"]), by_ids)
    close(logprob(model, "cd", [" ac", "e"])[:1], by_ids)
    with pytest.raises(BadInput, match=r"' a' straddles"):
        logprob(model, "cd ", "ac")
    with pytest.raises(BadInput, match="'ab' straddles"):
        score_options(model, ["ca"], ["c", "b"])
    close(score_options(model, ["cd"], [" ac", "e"]).logprobs[0, :1], by_ids)
    unconditional = score_options(model, ["cd"], [" ac"], "unconditional")
    close(unconditional.scores[0], by_ids - logprob(model, [[ids["<s>"]]], [[ids[" a"], ids["c"]]]))


def test_refusals() -> None:
    model = opened("llama")
    for message, arguments in {
        "no token": (PROMPTS, [[41], [], [42]]),
        "one per prompt": (PROMPTS, [[41], [42]]),
        "ids must be": (PROMPTS, [[41], [97], [42]]),
        "context is 64": ([[5] * 60], [[6] * 5]),
        "tokenizer": (PROMPTS, "text"),
    }.items():
        with pytest.raises(BadInput, match=message):
            logprob(model, *arguments)
    with pytest.raises(BadInput, match="mean, sum"):
        score_options(model, PROMPTS, OPTIONS, "average")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="at least one option"):
        score_options(model, PROMPTS, [OPTIONS, OPTIONS])
    for name in ("bert", "vit", "clip", "lstm"):
        with pytest.raises(NotServed, match="causal"):
            logprob(opened(name), [[5, 6]], [[7]])
    config = build("gpt2").config
    with pytest.raises(NotServed, match="head"):
        logprob(Model(GPT2Model(config).eval()), [[5, 6]], [[7]])
