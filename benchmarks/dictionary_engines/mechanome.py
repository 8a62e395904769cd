"""Mechanome's dictionaries, by their public interface and defaults."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import mechanome as mn
from benchmarks.dictionary_engines.common import Data, Request, fvu
from benchmarks.harness.serve import Work, serve
from mechanome.activations import ArrayActivations, harvest
from mechanome.dictionaries import TopK, fit


def steps(data: Data, args: Mapping[str, Any]) -> Work:
    """Train for some steps; `select` chooses how active latents are found."""
    request = Request.of(data, args)
    stream = ArrayActivations(request.train, batch=request.batch, shuffle=False, epochs=1)

    def work() -> Any:
        fitted = fit(
            TopK(args["width"], k=request.k),
            stream,
            lr=request.lr,
            warmup=0.0,
            decay=0.0,
            normalize="none",
            select=args.get("select", "exact"),
            seed=args.get("seed", 0),
            quiet=True,
        )
        return lambda: {"fvu": request.fvu(fitted.dictionary)}

    return work


def end_to_end(data: Data, args: Mapping[str, Any]) -> Work:
    """Text to several dictionaries on one stream, the model opened before the clock starts."""
    model = mn.load(args["folder"])

    def work() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            site, how = f"resid_post.{args['layer']}", {"tokens": args["tokens"], "context": args["context"]}
            store = harvest(model, args["texts"], site, folder, quiet=True, **how)
            fitted = fit(
                TopK(args["width"], k=args["k"]),
                store.stream(args["batch"], epochs=1),
                lr=args["lr"],
                warmup=0.0,
                decay=0.0,
                select=args["select"],
                seed=range(args["count"]),
                quiet=True,
            )
        return lambda: {"fvu": [fvu(data.raw_held, each.dictionary) for each in fitted]}

    return work


if __name__ == "__main__":
    serve(Data.of, {"steps": steps, "end_to_end": end_to_end}, "mechanome")
