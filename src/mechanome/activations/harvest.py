"""`harvest`: run a model over texts once, and keep what it computed, for everything that is trained on it later."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mechanome.activations.apart import KeptRows
from mechanome.activations.drop import Drop
from mechanome.activations.policy import chunks, median_norms
from mechanome.activations.reader import Reader
from mechanome.activations.recipe import named_texts, recipe
from mechanome.activations.sequences import sequences
from mechanome.activations.shards import Shard, dtype_name
from mechanome.activations.statistics import write_statistics
from mechanome.activations.store import STATS, STORE, TOKENS, ActivationStore
from mechanome.activations.writing import ORDERS, Writer, clean, disk_errors, row_bytes
from mechanome.core.cluster import fan_out
from mechanome.core.errors import BadInput, BudgetTooSmall, NotServed
from mechanome.core.files import folder, lock, sha256
from mechanome.core.progress import Bar, notice
from mechanome.engine import memory
from mechanome.engine.asked import count, one_of, opened_model, seed_of
from mechanome.engine.inputs import Bos
from mechanome.engine.model import Model
from mechanome.engine.site import Site

_CHUNK, _LEAST = 2**26, 4096
"""Bytes of rows, and least tokens, that are read before they are written: what a killed harvest does again."""
_LARGE = 10**9
"""Bytes from which a store's size is told before it is made."""


def harvest(
    model: Model,
    texts: Any,
    sites: str | Site | Iterable[str | Site],
    to: str | os.PathLike[str] = "acts",
    *,
    tokens: int | None = None,
    context: int = 256,
    packing: str = "packed",
    order: str = "shuffled",
    dtype: str | torch.dtype = "bf16",
    compute: str = "auto",
    shard_rows: int = 65_536,
    drop: Drop | None = None,
    bos: Bos = "auto",
    seed: int = 0,
    resume: bool = True,
    budget: memory.Budget = None,
    cluster: str | None = None,
    quiet: bool = False,
) -> ActivationStore:
    """Run a model over texts and store its activations.

    The store's folder is named by a hash of all that decides its content; asking for the same again opens it, and a
    harvest that was stopped, in whatever way, goes on where it stopped and ends in the same bytes.

    Args:
        model: an opened model; it is not changed.
        texts: whatever `texts` opens (a file, a folder, a data set, a corpus, a list), or rows of token ids.
        sites: names and globs; each is stored as `[row, d]`, heads side by side.
        to: the folder that holds stores.
        tokens: how many tokens the model sees, before any are dropped; None takes all of the texts.
        context: most tokens of a sequence.
        packing: "packed" (joined and cut), "isolated" or "sequence" (texts apart); see `activations.sequences`.
        order: "shuffled", or "sequence" to keep rows in the order of the text.
        dtype: of the stored values: "bf16", "fp16" or "fp32".
        compute: "auto" runs a float32 model in bfloat16 where the processor is fast at it (the recipe says whether it
            did), "bf16" always, "model" never.
        shard_rows: rows of a file.
        drop: what is left out; `Drop()` by default: first tokens, and rows of massive norm.
        bos: what stands first in each sequence, as in `mechanome.load`.
        seed: of the order.
        resume: False begins anew what was stopped, and makes a complete store again.
        budget: memory for the run, such as "2GB"; a quarter of what is free by default. It decides how much runs at a
            time.
        cluster: where the model runs, as in `mechanome.core.cluster.fan_out`; here, if not given. Workers run it on a
            processor, with as many threads as this process; the bytes are the same on equal processors. Whatever is
            written is written here.
        quiet: show no progress.

    Raises:
        BadInput: fewer tokens than asked for, nothing left after dropping, too little room on the disk, a full disk,
            another process at work on the same store. NotFinite: a row with NaN. UnknownSite, NotServed: see `Reader`;
            a cluster that cannot be had, or a model on another device than the CPU. BudgetTooSmall: not even one
            sequence fits. What was stored before an error stays, and is gone on from.
    """
    opened_model(model)
    if cluster is not None and model.device.type != "cpu":
        why = f"its workers have none of the kind {model.device.type!r}, where the model is"
        raise NotServed(f"cluster={cluster!r}", why, "load the model on the CPU, or leave cluster out")
    one_of("order", order, ORDERS)
    kept, drop = dtype_name(dtype), Drop.of(drop)
    shard_rows, seed = count("shard_rows", shard_rows), seed_of(seed)
    limit = memory.parse_budget(budget, model.device)
    items, name = named_texts(texts)
    data = sequences(
        items,
        model.tokenizer,
        packing=packing,
        context=context,
        tokens=tokens,
        bos=model.bos if bos == "auto" else bos,
        quiet=quiet,
    )
    reader = Reader(model, sites, data, context=context, compute=compute)
    made = recipe(reader, name, context, drop, dtype=kept, order=order, shard_rows=shard_rows, seed=seed)
    path = Path(to) / made["id"][:16]
    full = "free some space and harvest again: it goes on where it stopped"
    with disk_errors(path, full), lock(folder(path.parent) / f".{path.name}.lock", timeout=0):
        if not resume:
            _clear(path)
        store = ActivationStore.open(path) if (path / STORE).exists() else None
        if store is None or not store.complete:
            _check_room(reader, kept, shard_rows, path, limit, quiet)
            store = _run(store or _begin(path, reader, made, kept, order, drop), reader, drop, cluster, quiet)
        clean(path)
    return store


def _begin(path: Path, reader: Reader, made: dict[str, Any], dtype: str, order: str, drop: Drop) -> ActivationStore:
    """A store without rows: its tokens, its recipe, and the norms that rows are compared with."""
    reader.data.write(folder(path) / TOKENS)
    medians = median_norms(reader) if drop.sinks else {}
    store = ActivationStore(path, made, dict(reader.widths), dtype, order, medians=medians, at_once=reader.at_once)
    store.write()
    return store


def _run(store: ActivationStore, reader: Reader, drop: Drop, cluster: str | None, quiet: bool) -> ActivationStore:
    """From where a store is to its end."""
    data = reader.data
    reader.at_once = store.at_once  # bits depend on which rows share a pass
    writer = Writer(
        store.path,
        store.widths,
        store.dtype,
        store.order,
        data.tokens,
        store.recipe["shard_rows"],
        store.recipe["seed"],
    )
    parts = chunks(data.lengths, _chunk(reader))
    tokens = [int(data.lengths[wanted].sum()) for wanted in parts]
    begun = writer.progress.chunks
    # What a chunk holds depends on no other, so they may be read anywhere; they are written here, in order.
    read, threads = KeptRows(reader, drop, store.medians), torch.get_num_threads()
    with (
        Bar("Harvesting tokens", data.tokens, quiet) as bar,
        fan_out(read, parts[begun:], cluster=cluster, threads=threads, quiet=quiet) as found,
    ):
        bar.skip(sum(tokens[:begun]))
        for (rows, dropped), passed in zip(found, tokens[begun:]):
            seq, pos = rows.labels["seq"].numpy(), rows.labels["pos"].numpy()
            writer.add(rows, data.offsets[seq] + pos, dropped)
            bar.advance(passed)
    total = sum(writer.progress.lengths)
    if not total:
        raise BadInput("the rows", f"the policy left out all {data.tokens} of them", "drop less, see Drop")
    with Bar("Sorting rows", total, quiet) as bar:
        shards = tuple(writer.finish(bar.advance))
    done = replace(store, shards=shards, dropped=writer.progress.dropped, complete=True)
    with Bar("Statistics", len(shards) * len(store.sites), quiet) as bar:
        every = {site: _opened(store.path, site, shards, bar) for site in store.sites}
        write_statistics(store.path / STATS, every)
    done = replace(done, stats_sha256=sha256(store.path / STATS))
    done.write()
    return done


def _opened(path: Path, site: str, shards: Iterable[Shard], bar: Bar) -> Iterator[torch.Tensor]:
    for shard in shards:
        yield shard.open(path, site)["activation"]
        bar.advance()


def _chunk(reader: Reader) -> int:
    """Tokens that are read before they are written."""
    return max(_LEAST, _CHUNK // (4 * sum(reader.widths.values())))


def _check_room(reader: Reader, dtype: str, shard_rows: int, path: Path, limit: int, quiet: bool) -> None:
    """Set how much the reader runs at a time; refuse what does not fit into memory or on the disk.

    Raises:
        BudgetTooSmall, BadInput: with how much is needed.
    """
    data, stored = reader.data, row_bytes(reader.widths, dtype)
    shard = min(shard_rows, data.tokens) * stored
    if 4 * shard > limit:  # two buckets, the shard that is cut from them, and its columns one by one
        raise BudgetTooSmall(
            f"a budget of {memory.show(limit)}",
            f"shards of {shard_rows} rows need about {memory.show(4 * shard)}",
            f"give shard_rows={max(1, limit // (4 * stored))} or fewer, or budget={memory.show(4 * shard, up=True)!r}",
        )
    held = 8 * min(_chunk(reader), data.tokens) * sum(reader.widths.values())  # twice, while it is put in order
    longest = int(data.lengths.max())
    rows = -(-reader.at_once // longest)
    reader.at_once = longest * memory.pieces(rows, longest * reader.token_bytes, limit, "sequence", held)
    there = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    need, free = data.tokens * stored + 2 * shard - there, shutil.disk_usage(path.parent).free
    if need > free:
        why = f"the store takes about {memory.show(need, up=True)} more, {memory.show(free)} are free"
        raise BadInput(str(path), why, "ask for fewer tokens or sites, or name a folder on another disk")
    if need > _LARGE and not quiet:
        run = max(held + reader.at_once * reader.token_bytes, 4 * shard)
        notice(f"this harvest takes about {memory.show(need)} on disk and {memory.show(run)} of memory (estimates)")


def _clear(path: Path) -> None:
    """Remove a store's files; first the one that says it is whole."""
    (path / STORE).unlink(missing_ok=True)
    for item in path.glob("*"):
        if item.is_dir():
            shutil.rmtree(item)
        else:
            item.unlink()
