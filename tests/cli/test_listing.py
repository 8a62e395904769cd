"""What the lists of the command line say."""

from __future__ import annotations

from mechanome.cli.listing import model_lines
from mechanome.engine.registry import catalog, models_table


def test_what_is_known_of_the_weights_is_listed() -> None:
    rows = models_table().records()
    said = "\n".join(str(line) for line in model_lines(rows))
    noted = [model.notes for model in catalog() if model.notes]
    assert any("dequantized from Q4_1" in note for note in noted) and all(note in said for note in noted)
    bare = [{**row, "notes": ""} for row in rows]
    assert len(list(model_lines(bare))) == len(list(model_lines(rows))) - len(noted)
