"""Fan out: one function over many items, one after another here, or side by side on a cluster of machines (ray).

Where it runs changes nothing else: each task has its own seed and its number of threads, results come in the order of
the items, and the error that is raised is that of the first of them that failed, with the item named.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from mechanome.core.errors import BadInput, MechanomeError, NotServed
from mechanome.core.state import seeded

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 2
"""Results, in numbers of workers, that may wait until the caller takes them."""
_PATIENCE = 5.0
"""Seconds within which a cluster's address must answer; ray itself would try for minutes."""


@contextmanager
def fan_out(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    cluster: str | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    threads: int | None = None,
    quiet: bool = False,
) -> Iterator[Iterator[R]]:
    """Call a function with each item; `with fan_out(f, items, cluster="local") as results: ...` gives what it returns.

    The block's end, also by an error or Ctrl-C, ends all work that is going on. Results are made while they are asked
    for: here one by one, on a cluster a few ahead, so that many large ones do not pile up.

    Args:
        function: sent once to each worker, with all it refers to; files that it opens must be seen there, too.
        items: each becomes a task.
        cluster: None runs here, one after another. "local" starts workers on this machine, one for each `threads` of
            its processors; "auto" or an address ("host:6379", "ray://host:10001") uses the ray that runs there. In a
            program that has joined a ray already, that one is used.
        names: what errors call the items; None where what the function raises says it already.
        seed: each task's generators (torch, numpy, Python) start from a seed of its own that follows from this one.
        threads: of torch in each task, which can decide the last bits of a result; None is one on a cluster, and what
            this process uses here.
        quiet: do not show what workers print.

    Yields:
        results, in the order of the items.

    Raises:
        NotServed: ray is not installed, no machine has so many processors as threads were asked for, the function
            cannot be sent, or a worker was lost (killed, or out of memory).
        BadInput: no ray answers at the address.
        Exception: what the function raises, of the same kind, with the item named.
    """
    called = [""] * len(items) if names is None else list(names)
    if cluster is None:
        yield _here(_Task(function, seed, threads), items, called)
        return
    with _joined(cluster, quiet) as ray:
        each = threads or 1
        size = min(len(items), _room(ray, cluster, each))
        try:
            sent = ray.put(function)
        except TypeError as error:  # ray's word for what cannot be pickled
            why = f"it cannot be sent to another process ({str(error).splitlines()[0]})"
            raise NotServed("the function", why, "leave cluster out, or let it refer to less") from error
        workers = [ray.remote(_Task).options(num_cpus=each).remote(sent, seed, each) for _ in range(size)]
        try:
            yield _there(ray, workers, items, called)
        finally:
            for worker in workers:
                ray.kill(worker)


class _Task(Generic[T, R]):
    """The function, with a seed and threads; on a cluster it lives in a worker."""

    def __init__(self, function: Callable[[T], R], seed: int, threads: int | None) -> None:
        self.function, self.seed, self.threads = function, seed, threads

    def call(self, number: int, item: T) -> R:
        """The result of an item."""
        own = int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0])
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            with seeded(own):
                return self.function(item)
        finally:
            torch.set_num_threads(before)


def _here(task: _Task[T, R], items: Sequence[T], names: Sequence[str]) -> Iterator[R]:
    for number, (item, name) in enumerate(zip(items, names)):
        try:
            found = task.call(number, item)
        except Exception as error:
            raise _named(error, name) from error.__cause__
        yield found


def _there(ray: Any, workers: Sequence[Any], items: Sequence[Any], names: Sequence[str]) -> Iterator[Any]:
    """A worker has one item at a time, and gets the next when it is done."""
    waiting, idle = deque(enumerate(items)), deque(workers)
    running: dict[Any, tuple[int, Any]] = {}
    done: dict[int, Any] = {}
    for turn, name in enumerate(names):
        while True:
            while idle and waiting and waiting[0][0] < turn + _AHEAD * len(workers):
                number, item = waiting.popleft()
                worker = idle.popleft()
                running[worker.call.remote(number, item)] = number, worker
            if turn in done:
                break
            (ended,), _ = ray.wait(list(running), num_returns=1)
            number, worker = running.pop(ended)
            done[number] = ended
            idle.append(worker)
        yield _result(ray, done.pop(turn), name)


def _result(ray: Any, ended: Any, name: str) -> Any:
    try:
        return ray.get(ended)
    except ray.exceptions.RayTaskError as failed:
        raise _named(failed.cause, name) from failed
    except ray.exceptions.RayError as lost:
        why = f"its worker was lost ({' '.join(str(lost).split())})"
        raise NotServed(name or "a task", why, "look whether memory ran out there, and run fewer at a time") from lost


def _named(error: Exception, name: str) -> Exception:
    """The error with an item's name in its message, or as a note where the message is not ours."""
    if not name:
        return error
    if not isinstance(error, MechanomeError):
        error.add_note(f"it was raised by {name}")
        return error
    named = type(error)(f"{name}: {error.what}", error.why, error.fix)
    return named.with_traceback(error.__traceback__)


@contextmanager
def _joined(cluster: str, quiet: bool) -> Iterator[Any]:
    """The ray of this process; it leaves it again unless it was there before."""
    try:
        import ray
    except ImportError as error:
        fix = "run `python -m pip install 'mechanome[cluster]'`"
        raise NotServed(f"cluster={cluster!r}", "it needs ray, which is not installed", fix) from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {}
    if cluster == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # ray would report to its makers
        options = {"include_dashboard": False}
    try:
        _answers(cluster)
        ray.init(address=cluster, log_to_driver=not quiet, logging_level="error", **options)
    except (OSError, ValueError, RuntimeError) as error:
        why = f"no ray answers there ({' '.join(str(error).split())})"
        raise BadInput(
            f"cluster={cluster!r}", why, "give 'local', 'auto', or the address of a ray that lets you in"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _room(ray: Any, cluster: str, threads: int) -> int:
    """How many workers with so many threads there can be.

    Raises:
        NotServed: none; ray would wait for ever.
    """
    processors = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    found = sum(here // threads for here in processors)
    if not found:
        why = f"its largest machine has {max(processors, default=0)} processors for tasks of {threads} threads"
        raise NotServed(f"cluster={cluster!r}", why, "use fewer, such as by OMP_NUM_THREADS=1")
    return found


def _answers(cluster: str) -> None:
    """Knock at an address with a port.

    Raises:
        OSError: nobody opens.
    """
    host, colon, port = cluster.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
