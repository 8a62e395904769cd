"""Mechanome: open a neural network, find the mechanism behind a behaviour, prove it, change it."""
