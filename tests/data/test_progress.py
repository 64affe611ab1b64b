"""Progress where there is no terminal."""

from gpt1_jax.data.progress import Bar


def test_lines_come_now_and_then(capsys):
    now = 100.0
    bar = Bar("tokenise", 80_000_000, "B", unit_scale=True)
    hidden = Bar("validate", 100, "batch", active=False)
    bar.start_t = bar.last_print_t = now
    bar._time = lambda: now
    for _ in range(8):
        now += 5.0
        bar.update(10_000_000)
    now += 30.0
    bar.update(30_000_000)  # compressed text may be more
    hidden.update(50)
    bar.close()
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "tokenise: 20.0MB of 80.0MB, 00:30 left.",
        "tokenise: 40.0MB of 80.0MB, 00:20 left.",
        "tokenise: 60.0MB of 80.0MB, 00:10 left.",
        "tokenise: 80.0MB of 80.0MB, 00:00 left.",
        "tokenise: 110MB of 80.0MB, 00:00 left.",
    ]
    assert not captured.out
