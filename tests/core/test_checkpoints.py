import pytest
import torch

from mechanome.core import BadInput, CheckpointFolder, CorruptFile, NotFinite


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    folder = CheckpointFolder(tmp_path / "c")
    for step in (1, 2, 3):
        folder.save(step, {"w": torch.tensor([float(step)]), "lr": 0.1})
    return folder


def test_keeps_the_newest_and_loads_them(folder):
    assert folder.steps() == [2, 3]
    assert folder.load(2) == {"w": torch.tensor([2.0]), "lr": 0.1}
    assert folder.latest() == (3, {"w": torch.tensor([3.0]), "lr": 0.1})
    with pytest.raises(BadInput):
        folder.load(1)
    assert CheckpointFolder(folder.path / "none").latest() is None
    assert CheckpointFolder(folder.path, keep=0).keep == 2


def test_a_damaged_checkpoint_is_reported_and_passed_over(folder, capsys):
    folder.file(3).write_bytes(folder.file(3).read_bytes()[:-1])
    assert folder.latest()[0] == 2
    assert "step 3 is passed over" in capsys.readouterr().err
    folder.file(2).write_bytes(b"")
    with pytest.raises(CorruptFile, match="all 2"):
        folder.latest()


def test_nan_never_enters(folder):
    with pytest.raises(NotFinite, match="state/model/w after step 4"):
        folder.save(4, {"model": {"w": torch.tensor([1.0, float("nan")])}})
    folder.save(5, {"best": torch.tensor(float("inf"))})
    assert folder.steps() == [3, 5]


def test_one_writer_at_a_time_clears_what_a_killed_one_left(folder):
    leftover = folder.path / ".step-000000004.safetensors.0123456789ab.tmp"
    leftover.write_bytes(b"half")
    with folder.held():
        assert not leftover.exists()
        with pytest.raises(BadInput, match="another process"), CheckpointFolder(folder.path).held():
            pass
    assert names(folder.path) == [".lock", "step-000000002.safetensors", "step-000000003.safetensors"]


def test_a_file_where_the_folder_must_be(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(BadInput, match="a file is where a folder must be"), CheckpointFolder(tmp_path / "file").held():
        pass
    assert (tmp_path / "file").read_text() == "kept"
