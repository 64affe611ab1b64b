import pytest

from gpt1_jax.runs import console


def test_only_the_process_that_writes_is_heard(monkeypatch, capsys):
    console.say("heard")
    monkeypatch.setattr(console, "is_main_process", lambda: False)
    console.say("not heard")
    assert capsys.readouterr().out == "heard\n"


def test_nothing_that_is_said_moves_the_cursor(capsys):
    console.say("\x1b[2Jone\ntwo", end=" ")
    assert capsys.readouterr().out == "\\x1b[2Jone\ntwo "


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (5, "1 minute"),
        (3 * 3600 - 60, "3 hours"),
        (124 * 86_400, "124 days"),
    ],
)
def test_a_rough_duration_has_one_number(seconds, said):
    assert console.about(seconds) == said
