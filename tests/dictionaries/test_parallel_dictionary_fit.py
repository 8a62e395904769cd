"""Two processes that share each batch do what one does with the whole."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from mechanome.core.tensor_files import read_tensors
from mechanome.dictionaries.crew import Crew

SCRIPT = Path(__file__).with_name("parallel_dictionary_fit.py")


def run(*command):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_two_processes_are_as_one(tmp_path):
    run(sys.executable, SCRIPT, tmp_path, "alone")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run(*torchrun, SCRIPT, tmp_path, "parallel")
    alone, first, second = (
        read_tensors(tmp_path / f"{name}.safetensors", format="fits").tensors for name in ("alone", "0", "1")
    )
    assert alone.keys() == first.keys()
    for name, tensor in alone.items():
        assert torch.equal(first[name], second[name]), name
        scale = tensor.abs().max().clamp_min(1e-6) if tensor.is_floating_point() else 1
        assert (first[name] - tensor).abs().max() <= 1e-5 * scale, name


def test_shares_cover_a_batch_once():
    for rows in (1, 7, 64):
        parts = [list(range(rows))[Crew(rank, 3).share(rows)] for rank in range(3)]
        assert [row for part in parts for row in part] == list(range(rows))
