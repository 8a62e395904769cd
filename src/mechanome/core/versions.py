"""What a result was made with: versions and machine, for result files. No host names, users or paths."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mechanome.version import __version__

_PACKAGES = ("numpy", "safetensors", "scipy", "tokenizers", "torch", "transformers")


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Versions by name: mechanome, python and the installed ones among ``packages``."""
    found = {"mechanome": __version__, "python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int | float]:
    """The machine: system, architecture, cpu model, usable cores, torch threads, memory (GiB), accelerators."""
    import torch  # here, so that versions, and with them a run's configuration, are read without it

    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "accelerator": _accelerator(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _accelerator() -> str:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return "mps" if torch.backends.mps.is_available() else "none"
