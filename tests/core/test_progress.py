import io

import pytest
from rich.console import Console

from mechanome.core import progress, silence, track


class Clock:
    """A clock that tests turn by hand."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    hand = Clock()
    monkeypatch.setattr(progress, "time", hand)
    return hand


def run(clock, seconds, *, terminal=True, quiet=False, remark="loss 0.5"):
    """Ten pieces of work over so many seconds; returns what was shown."""
    page = io.StringIO()
    console = Console(file=page, force_terminal=terminal, width=120, color_system=None)
    with progress.Bar("patching", 10, quiet, console) as bar:
        for _ in range(10):
            clock.now += seconds / 10
            bar.advance(remark=remark)
            if bar._rich:
                bar._rich.refresh()
    assert bar.done == 10
    return page.getvalue()


def test_short_work_shows_nothing(clock):
    assert run(clock, 1.9) == ""


def test_long_work_shows_what_how_far_how_fast(clock):
    shown = run(clock, 20)
    assert all(part in shown for part in ("patching", "5/10", "2.0 s each", "loss 0.5"))
    assert "10/10" in shown
    assert " 1/10" in shown
    assert "2.0 s each, 0:10 left" in shown


def test_pace_counts_only_this_run(clock):
    bar = progress.Bar("fit", 9000, quiet=True)
    bar.skip(1000)
    assert bar.pace() == ""
    for _ in range(100):
        clock.now += 0.5
        bar.advance(5)
    assert bar.pace() == "10.0/s, 12:30 left"
    bar.total = 40_000
    assert bar.pace() == "10.0/s, 1:04:10 left"
    bar.total = None
    assert bar.pace() == "10.0/s"


def test_nothing_without_a_watcher(clock):
    assert run(clock, 20, terminal=False) == ""
    assert run(clock, 20, quiet=True) == ""
    with silence():
        assert run(clock, 20) == ""
    assert run(clock, 20) != ""


def test_an_exception_takes_the_line_away(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with pytest.raises(RuntimeError), progress.Bar("work", 3, console=console) as bar:
        clock.now += 3
        bar.advance()
        assert bar._rich is not None
        raise RuntimeError
    assert bar._rich is None


def test_track_yields_everything_and_counts(clock):
    page = io.StringIO()
    console = Console(file=page, force_terminal=True, width=120, color_system=None)

    def slow():
        for item in "abcd":
            clock.now += 1
            yield item

    assert list(track(slow(), "letters", total=4, console=console)) == list("abcd")
    assert "letters" in page.getvalue()
    assert list(track([1, 2, 3], "numbers", quiet=True)) == [1, 2, 3]


def test_notices_go_to_standard_error(capsys):
    progress.notice("checkpoint [passed] over")
    with silence():
        progress.notice("unheard")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "note: checkpoint [passed] over\n"


def told(clock, seconds, *, terminal=False, quiet=False):
    """What a stage of so many seconds shows, at its beginning and in all."""
    page = io.StringIO()
    console = Console(file=page, force_terminal=terminal, width=120, color_system=None)
    with progress.stage("verify", quiet, console):
        at_once = page.getvalue()
        clock.now += seconds
    return at_once, page.getvalue()


def test_a_stage_is_told_of_at_once_on_a_terminal(clock):
    assert told(clock, 0.1, terminal=True) == ("verify ...\n", "verify ...\n")


def test_elsewhere_only_a_long_stage_leaves_a_line(clock):
    assert told(clock, 4.9) == ("", "")
    assert told(clock, 65) == ("", "verify: 1:05\n")


def test_a_stage_can_be_quiet(clock):
    assert told(clock, 65, terminal=True, quiet=True) == told(clock, 65, quiet=True) == ("", "")
    with silence():
        assert told(clock, 65, terminal=True) == ("", "")
