"""The registry's real models: each does what its paper says it does, on inputs written down here.

They are converted once into the user's cache. A test is skipped only where the model cannot be had at all.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from mechanome.core.errors import DownloadFailed
from mechanome.engine.registry import catalog, open_folder
from mechanome.engine.registry.modules.protein_mpnn import encode_sequence

pytestmark = pytest.mark.real_model

# Variable regions of trastuzumab.
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRY"
    "ADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
LIGHT = "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK"
SIZES = {model.id: model.parameters for model in catalog()}


def real(id: str) -> tuple[nn.Module, object]:
    """Module and processor from the user's own cache."""
    try:
        module, processor, provenance = open_folder(id)
    except DownloadFailed as error:
        pytest.skip(f"{id} cannot be downloaded: {error}")
    assert provenance.id == id and len(provenance.sha256) == 64
    assert sum(parameter.numel() for parameter in module.parameters()) == SIZES[id]
    assert not module.training and {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    return module, processor


def recovery(module: nn.Module, tokenizer: object, sequence: str, every: int = 1) -> float:
    """Share of residues that are predicted when each in turn (or every n-th) is masked."""
    ids = tokenizer(sequence, return_tensors="pt").input_ids
    assert ids.shape[1] == len(sequence) + 2
    places = torch.arange(1, len(sequence) + 1, every)
    rows = torch.arange(len(places))
    masked = ids.repeat(len(places), 1)
    masked[rows, places] = tokenizer.mask_token_id
    with torch.no_grad():
        logits = module(masked).logits
    return (logits[rows, places].argmax(-1) == ids[0, places]).float().mean().item()


def test_smollm2_knows_the_capital_of_france():
    module, tokenizer = real("smollm2-135m-instruct")
    ids = tokenizer("<|im_start|>The capital of France is", return_tensors="pt").input_ids
    assert ids.tolist() == [[1, 504, 3575, 282, 4649, 314]]
    with torch.no_grad():
        logits = module(ids).logits[0, -1]
    top = logits.topk(3)
    assert [tokenizer.decode([token]) for token in top.indices] == [" Paris", " Mon", " Le"]
    assert torch.allclose(top.values, torch.tensor([15.4140, 11.6474, 11.2503]), atol=2e-3)


def test_smollm2_weights_are_those_of_transformers_own_gguf_reader():
    """Values recorded from transformers' `gguf_file=`; rows of q and k show the rotary order."""
    weights = real("smollm2-135m-instruct")[0].state_dict()
    recorded = {
        ("model.embed_tokens.weight", 504): [0.1096038818359375, 0.017436981201171875, -0.09465789794921875],
        ("model.layers.7.self_attn.q_proj.weight", 33): [-0.11578369140625, -0.11578369140625, 0.02227783203125],
        ("model.layers.3.self_attn.k_proj.weight", 100): [0.317626953125, 0.4173583984375, -0.3804931640625],
        ("model.layers.29.mlp.down_proj.weight", 5): [-0.3515625, -0.08441162109375, -0.217987060546875],
    }
    for (name, row), values in recorded.items():
        assert weights[name][row, :3].tolist() == values, name


def test_smollm2_tokens_and_chat():
    _, tokenizer = real("smollm2-135m-instruct")
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("don't pay 405").input_ids)
    assert pieces == ["don", "'t", "Ġpay", "Ġ", "4", "0", "5"]
    for text in (
        " two  blanks\n\ttab",
        "naïve café 日本語 🙂",
        "def f(x):\n    return x**2",
        "<|im_start|>user\nhi<|im_end|>",
    ):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


def test_minilm_puts_paraphrases_together():
    module, tokenizer = real("minilm-l6")
    sentences = [
        ("A man is playing a guitar.", "Someone plays the guitar."),
        ("The weather is lovely today.", "It is a beautiful sunny day."),
        ("Stocks fell sharply on Monday.", "Share prices dropped at the start of the week."),
    ]
    batch = tokenizer([text for pair in sentences for text in pair], padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = module(**batch).last_hidden_state
    mask = batch.attention_mask.unsqueeze(-1)
    vectors = functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    similarity = vectors @ vectors.T
    pairs = similarity[[0, 2, 4], [1, 3, 5]]
    others = similarity[[0, 0, 1, 2, 3], [2, 4, 5, 4, 5]]
    assert pairs.min() > 0.5 and others.max() < 0.2, (pairs, others)


def test_antiberty_recovers_masked_residues():
    module, tokenizer = real("antiberty")
    assert recovery(module, tokenizer, LIGHT, every=5) > 0.7
    shuffled = "".join(np.random.default_rng(0).permutation(list(LIGHT)))
    assert recovery(module, tokenizer, shuffled, every=5) < 0.25


@pytest.mark.parametrize(("id", "own", "other"), [("sapiens-vh", HEAVY, LIGHT), ("sapiens-vl", LIGHT, HEAVY)])
def test_each_sapiens_knows_its_own_chain(id, own, other):
    module, tokenizer = real(id)
    assert recovery(module, tokenizer, own) > 0.7
    assert recovery(module, tokenizer, other) < 0.4


@pytest.mark.parametrize(
    ("id", "start", "end", "languages"),
    [("whisper-tiny-en", [50257, 50362], 50256, 0), ("whisper-base", [50258, 50259, 50359, 50363], 50257, 99)],
)
def test_whisper_speaks_its_own_vocabulary(id, start, end, languages):
    module, processor = real(id)
    settings = module.generation_config
    assert processor.tokenizer("", add_special_tokens=True).input_ids == [*start, end]
    assert settings.decoder_start_token_id == start[0] and settings.no_timestamps_token_id == start[-1]
    assert settings.eos_token_id == module.config.eos_token_id == end
    assert settings.is_multilingual is bool(languages) and len(getattr(settings, "lang_to_id", {})) == languages
    time = torch.arange(16000) / 16000
    tone = (0.3 * torch.sin(2 * torch.pi * 440 * time)).numpy()
    features = processor(tone, sampling_rate=16000, return_tensors="pt").input_features
    assert features.shape == (1, 80, 3000)
    said = processor.tokenizer(" Thank", add_special_tokens=False).input_ids
    with torch.no_grad():
        output = module(features, decoder_input_ids=torch.tensor([[*start, *said]]))
    assert output.encoder_last_hidden_state.shape == (1, 1500, module.config.d_model)
    assert processor.tokenizer.decode(output.logits[0, -1].argmax()) == " you"


ROWS, COLUMNS = np.mgrid[:256, :256]
RADIUS, ANGLE = np.hypot(ROWS - 128, COLUMNS - 128), np.arctan2(ROWS - 128, COLUMNS - 128)


def ray(angle: float) -> np.ndarray:
    """Distance of each pixel from the ray that leaves the center at `angle`, along the circle."""
    return np.abs((ANGLE - angle + np.pi) % (2 * np.pi) - np.pi) * RADIUS


def ball() -> np.ndarray:
    light = np.exp(-((ROWS - 100) ** 2 + (COLUMNS - 100) ** 2) / 6000)[..., None]
    return np.where((RADIUS < 85)[..., None], np.array([250, 250, 245]) * (0.55 + 0.55 * light), [40, 110, 60])


def clock() -> np.ndarray:
    face = np.where(RADIUS < 110, 250, 180)
    face[(RADIUS > 104) & (RADIUS < 112)] = 20
    for hour in range(12):
        face[(ray(hour * np.pi / 6) < 3) & (RADIUS > 86) & (RADIUS < 100)] = 0
    for angle, length, width in ((-2.2, 55, 4), (-0.6, 85, 3)):
        face[(ray(angle) < width) & (length > RADIUS)] = 0
    return face


def crossword() -> np.ndarray:
    black = np.kron(np.random.default_rng(0).random((16, 16)) < 0.3, np.ones((16, 16), bool))
    return np.where(black | (ROWS % 16 == 0) | (COLUMNS % 16 == 0), 0, 255)


def screen() -> np.ndarray:
    return np.where((ROWS % 8 < 2) | (COLUMNS % 8 < 2), 60, 200)


def test_efficientnet_recognizes_drawings():
    """ImageNet classes that a few lines can draw: ping-pong ball, analog clock, crossword puzzle, window screen."""
    module, processor = real("efficientnet-lite0")
    drawings = [ball(), clock(), crossword(), screen()]
    pictures = [np.broadcast_to(d if d.ndim == 3 else d[..., None], (256, 256, 3)).clip(0, 255) for d in drawings]
    pixels = processor([picture.astype(np.uint8) for picture in pictures], return_tensors="pt").pixel_values
    assert pixels.shape == (4, 3, 224, 224)
    assert pixels.min() >= -127 / 128 - 1e-3 and pixels.max() <= 1 + 1e-3
    with torch.no_grad():
        chances = module(pixels).softmax(-1)
    assert chances.argmax(-1).tolist() == [722, 409, 918, 904]
    assert chances.amax(-1).min() > 0.5


def test_proteinmpnn_recovers_a_real_sequence():
    """HIV-1 capsid, 1A8O (selenomethionines left out); numbers recorded from the original code."""
    module, _ = real("proteinmpnn")
    lines = Path(__file__).with_name("1a8o_backbone.jsonl").read_text().splitlines()
    residues = [json.loads(line) for line in lines]
    coordinates = torch.tensor([[residue["N_CA_C_O"] for residue in residues]])
    sequence = encode_sequence("".join(residue["residue"] for residue in residues))[None]
    with torch.no_grad():
        for output, native, right, tenth in (
            (module(coordinates, sequence), -1.651566, 32, [-2.235690, -5.044085, -2.677177]),
            (module(coordinates), -1.638038, 31, [-2.149133, -5.013039, -2.693989]),
        ):
            assert output.gather(-1, sequence.unsqueeze(-1)).mean().item() == pytest.approx(native, abs=1e-4)
            assert (output.argmax(-1) == sequence).sum() == right
            assert torch.allclose(output[0, 10, :3], torch.tensor(tenth), atol=1e-4)
