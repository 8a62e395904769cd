"""A worker without an engine: its tasks return what they are told."""

import time

import numpy as np
from benchmarks.harness.serve import serve


def values(engine, args):
    """Return `values` after `sleep` seconds; preparing takes `prepare` seconds and is not timed."""
    time.sleep(args.get("prepare", 0.0))

    def work():
        time.sleep(args.get("sleep", 0.0))
        print("a library prints to standard output")
        return {"values": np.array(args["values"], dtype=float) * engine["layers"]}

    return work


def deferred(engine, args):
    """Arrange the results for 0.3 s, when the clock has stopped."""

    def arrange():
        time.sleep(0.3)
        return {"values": np.array(args["values"])}

    return lambda: arrange


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
    tasks = {"values": values, "deferred": deferred, "allocate": allocate, "fail": fail, "die": die}
    serve(lambda settings: {"layers": settings["layers"] or 1}, tasks, "numpy")
