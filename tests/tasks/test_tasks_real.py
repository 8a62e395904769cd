"""Generators on SmolLM2: spans and lengths in its tokens, and what it does right."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

import mechanome as mn
from mechanome.core import silence
from mechanome.core.errors import DownloadFailed
from mechanome.engine.inputs import encode
from mechanome.engine.registry import ensure
from mechanome.tasks import TASKS, make

pytestmark = pytest.mark.real_model
ID = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def tokenizing():
    """All of a model that tokenizing needs."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(ensure(ID, quiet=True))
    except DownloadFailed as error:
        pytest.skip(f"{ID} cannot be downloaded: {error}")
    return SimpleNamespace(
        tokenizer=tokenizer,
        config=None,
        name=ID,
        encode=lambda inputs, spans=(): encode(inputs, tokenizer, spans=spans),
    )


@pytest.fixture(scope="module")
def model():
    try:
        return mn.load(ID)
    except DownloadFailed as error:
        pytest.skip(f"{ID} cannot be downloaded: {error}")


@pytest.mark.parametrize("name", TASKS)
def test_with_a_model_all_pairs_have_equal_length_and_spans_point_at_their_words(name, tokenizing):
    with silence():
        task = make(name, model=tokenizing)
    assert len(task) == (96 if name == "months" else 200)
    assert task.aligned(tokenizing, quiet=True).kept == len(task)
    clean, corrupted = task.encode(tokenizing), task.encode(tokenizing, counterfactual=True)
    assert clean.frame.lengths == corrupted.frame.lengths
    assert (clean.input_ids != corrupted.input_ids).any(1).all()
    for batch, side in ((clean, "inputs"), (corrupted, "counterfactual")):
        for row, example in enumerate(task):
            text = getattr(example, side)
            for label, (lo, hi) in (example.spans if side == "inputs" else example.counterfactual_spans).items():
                places = batch.frame.positions(label, row)
                assert places == list(range(places[0], places[-1] + 1))
                assert "".join(batch.tokens[row][p] for p in places).strip() == text[lo:hi]


@pytest.mark.parametrize("name", TASKS)
def test_metric_tokens_tell_answer_from_foil(name, tokenizing):
    with silence():
        task = make(name, 30, model=tokenizing)
    clean, _, metric = task.batch(tokenizing)
    decode = tokenizing.tokenizer.decode
    for row, example in enumerate(task):
        start = clean.frame.starts[row]
        ids = clean.input_ids[row, start : start + clean.frame.lengths[row]].tolist()
        said = decode(ids).removeprefix("<|im_start|>")
        full = example.inputs + example.answer
        assert full.startswith(said) and full.startswith(said + decode([metric.answer[row]]))
        assert (example.inputs + example.foil).startswith(said + decode([metric.foil[row]]))


def test_smollm2_does_ioi_and_capitals(model):
    for name, n in (("ioi", 8), ("capitals", 24)):
        found = make(name, n, model=model, shots=0).filter(model, quiet=True)
        assert found.share > 0.9, (name, found.margins)
        assert found.margins.median() > 2
