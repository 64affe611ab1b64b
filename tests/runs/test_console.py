from gpt1_jax.runs import console


def test_only_the_process_that_writes_is_heard(monkeypatch, capsys):
    console.say("heard")
    monkeypatch.setattr(console, "is_main_process", lambda: False)
    console.say("not heard")
    assert capsys.readouterr().out == "heard\n"
