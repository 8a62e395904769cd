"""The worker's end: one process holds one engine and answers timed requests, one JSON line each.

Importing and loading happen before the first request, so they are never timed. A task is prepared first (tensors
made of the request, untimed) and then run once under the clock; what it returns goes to an `.npz` for comparison,
again untimed. Standard output belongs to the protocol: whatever a library prints goes to standard error.

This file runs in the environments of the peers: the standard library and numpy only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Results = Mapping[str, Any]
Work = Callable[[], Results | Callable[[], Results]]
Task = Callable[[Any, Mapping[str, Any]], Work]

_UNDER = ("numpy", "torch", "transformers")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def serve(load: Callable[[Mapping[str, Any]], Any], tasks: Mapping[str, Task], package: str) -> None:
    """Load an engine with the settings in `argv[1]`, then answer requests from standard input until it closes.

    Args:
        load: makes the engine from the settings.
        tasks: by name; `tasks[name](engine, args)` prepares and returns the work to time. The work returns arrays by
            name, or a function that arranges them for comparison and is called when the clock has stopped. A text
            named "note" is no array but said beside the row.
        package: the distribution whose version is reported, with those it runs on.
    """
    reply = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings = json.loads(sys.argv[1])
    clock = CLOCKS[settings["clock"]]
    engine = load(settings)
    print(json.dumps({name: version(name) for name in (package, *_UNDER)}), file=reply, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = _timed(tasks[request["task"]](engine, request["args"]), clock, request["save"])
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=reply, flush=True)


def _timed(work: Work, clock: Callable[[], float], save: str | None) -> dict[str, Any]:
    """Run the work once; where results are saved, peak memory is taken too, from a heap without slack.

    Other calls leave the heap as it is, so that pages freed by one call can serve the next, as in daily use.
    """
    gc.collect()
    if save is not None:
        _reset_peak()
    start = clock()
    found = work()
    seconds = clock() - start
    if save is None:
        return {"seconds": seconds, "peak_mb": None}
    peak = _peak_mb()
    arranged = dict(found() if callable(found) else found)
    note = arranged.pop("note", "")
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in arranged.items()}
    np.savez(save, **arrays)
    return {"seconds": seconds, "peak_mb": peak, "note": note}


def _reset_peak() -> None:
    """Give freed pages back and forget the high-water mark, where the system can (Linux); elsewhere the peak is the
    whole process's."""
    if _CLEAR_REFS.exists():
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        _CLEAR_REFS.write_text("5")


def _peak_mb() -> float:
    """Peak resident memory in MB (10^6 bytes), the engine and its weights included."""
    if _STATUS.exists():
        line = next(x for x in _STATUS.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
