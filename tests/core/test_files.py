import hashlib
import multiprocessing
import os
import stat
import threading
import time

import pytest

from mechanome.core import BadInput, atomic_dir, atomic_path, atomic_write, lock, sha256


def names(folder):
    return sorted(file.name for file in folder.iterdir())


class Broken(Exception):
    pass


def test_write_replaces_whole(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    for text in ("one\r\n", "zwei é"):
        with atomic_write(path, "w") as handle:
            handle.write(text)
        assert path.read_bytes() == text.encode()
    assert names(path.parent) == ["a.txt"]


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_exception_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_write(path) as handle:
        handle.write(b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_nothing_is_seen_before_the_end(tmp_path):
    with atomic_write(tmp_path / "a") as handle:
        handle.write(b"x")
        handle.flush()
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"x"


def test_content_and_folder_are_synced_in_order(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def record(descriptor):
        synced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        assert (tmp_path / "a").exists() == (synced[-1] == "folder")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    with atomic_write(tmp_path / "a") as handle:
        handle.write(b"x")
    assert synced == ["file", "folder"]


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        with atomic_write(tmp_path / "a") as handle:
            handle.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_symbolic_links_are_followed(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with atomic_write(tmp_path / "link") as handle:
        handle.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a"):
        pass
    assert names(tmp_path) == []


def test_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="it is a device"), atomic_path(tmp_path / "pipe") as staged:
        staged.write_bytes(b"x")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["folder", "file/below", "file/deep/below"])
def test_a_folder_or_a_file_in_the_way_of_a_file(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    why = "it is a folder|a file is where a folder must be"
    with pytest.raises(BadInput, match=why), atomic_write(tmp_path / name) as handle:
        handle.write(b"new")
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_folder_appears_whole(tmp_path):
    with atomic_dir(tmp_path / "model") as staged:
        (staged / "sub").mkdir()
        (staged / "sub" / "x").write_text("1")
        assert not (tmp_path / "model").exists()
    assert (tmp_path / "model" / "sub" / "x").read_text() == "1"
    assert names(tmp_path) == ["model"]


def test_folder_exception_leaves_nothing(tmp_path):
    with pytest.raises(Broken), atomic_dir(tmp_path / "model") as staged:
        (staged / "x").write_text("1")
        raise Broken
    assert names(tmp_path) == []


def test_the_first_folder_wins(tmp_path):
    with atomic_dir(tmp_path / "model") as late:
        (late / "x").write_text("late")
        with atomic_dir(tmp_path / "model") as early:
            (early / "x").write_text("early")
    assert (tmp_path / "model" / "x").read_text() == "early"
    assert names(tmp_path) == ["model"]


def test_a_file_in_the_way_of_a_folder(tmp_path):
    (tmp_path / "model").write_text("file")
    with pytest.raises(BadInput, match="file"), atomic_dir(tmp_path / "model"):
        pass
    assert (tmp_path / "model").read_text() == "file"


def _build(path, name, barrier):
    barrier.wait()
    with atomic_dir(path) as staged:
        for part in range(5):
            (staged / str(part)).write_text(name)


def test_racing_processes_leave_one_unmixed_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    racers = [context.Process(target=_build, args=(tmp_path / "m", str(i), barrier)) for i in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 4
    assert len({file.read_text() for file in (tmp_path / "m").iterdir()}) == 1
    assert names(tmp_path) == ["m"]


def test_lock_excludes_and_times_out(tmp_path):
    with lock(tmp_path / "l"), pytest.raises(BadInput, match="another process"), lock(tmp_path / "l", timeout=0.05):
        pass
    with lock(tmp_path / "l", timeout=0):
        pass


def test_lock_among_threads(tmp_path):
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        with lock(tmp_path / "l"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.005)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_sha256_with_progress(tmp_path):
    content = os.urandom(2**20 * 2 + 17)
    (tmp_path / "a").write_bytes(content)
    seen = []
    digest = sha256(tmp_path / "a", lambda done, total: seen.append((done, total)))
    assert digest == hashlib.sha256(content).hexdigest()
    assert seen == [(done, len(content)) for done in (2**20, 2**21, len(content))]
    with pytest.raises(BadInput, match="no such file"):
        sha256(tmp_path / "b")
    with pytest.raises(BadInput, match="folder"):
        sha256(tmp_path)
