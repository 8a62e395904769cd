"""A worker without an engine: its tasks return what they are told."""

import numpy as np
from benchmarks.harness.serve import serve


def values(engine, args):
    """Return `values` times the number of layers."""

    def work():
        print("a library prints to standard output")
        note = {"note": args["note"]} if "note" in args else {}
        return {"values": np.array(args["values"], dtype=float) * engine["layers"], **note}

    return work


def allocate(engine, args):
    """Hold `mb` megabytes for a moment."""

    def work():
        block = np.ones(int(args["mb"] * 1e6 / 8))
        return {"values": block[:2]}

    return work


def fail(engine, args):
    raise ZeroDivisionError("on purpose")


def die(engine, args):
    raise SystemExit("gone")


if __name__ == "__main__":
    tasks = {"values": values, "allocate": allocate, "fail": fail, "die": die}
    serve(lambda settings: {"layers": settings["layers"] or 1}, tasks, "numpy")
