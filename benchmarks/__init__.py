"""Benchmarks: Mechanome beside its peers, paired runs of the same work with the same numbers."""
