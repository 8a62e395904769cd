"""Workers of `make bench-engine`: the same tasks by Mechanome, Transformers with hooks, TransformerLens and nnsight."""
