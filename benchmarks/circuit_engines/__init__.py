"""Workers of `make bench-circuits`: circuits by Mechanome, by hooks, by TransformerLens and by auto-circuit."""
