"""Open a model: architecture, sites, dispatch, edits, capture, gradients, generation, resume, weights."""
