"""Workers of the dictionary benchmark: one a peer."""
