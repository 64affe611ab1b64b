from gpt1_jax.runs import console


def test_only_the_process_that_writes_is_heard(monkeypatch, capsys):
    console.say("heard")
    monkeypatch.setattr(console, "is_main_process", lambda: False)
    console.say("not heard")
    assert capsys.readouterr().out == "heard\n"


def test_nothing_that_is_said_moves_the_cursor(capsys):
    console.say("\x1b[2Jone\ntwo", end=" ")
    assert capsys.readouterr().out == "\\x1b[2Jone\ntwo "
