"""lm_eval calls the model of a run, in Python and from its command line."""

import re
import runpy
import sys

import pytest
from made_up_tokenizer import Characters, small_gpt1_tokenizer
from tiny_run import ROOT, run_program
from tiny_tasks import write_lines

import gpt1_jax
from gpt1_jax.errors import MissingPackage, UserError

PAGE = (ROOT / "docs" / "lm-eval.md").read_text()
GOOD, BAD = "the abcd of efgh and a", "the abcd of efgh and a jjjj"
LONG = " ".join(["abcd"] * 60)


@pytest.fixture(scope="module")
def harness():
    pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    from gpt1_jax.studies.eval_harness import model

    return model


@pytest.fixture(scope="module")
def model(harness, pretrained):
    return harness.RunLM(str(pretrained))


@pytest.fixture(scope="module")
def face(pretrained):
    return gpt1_jax.load(str(pretrained))


@pytest.fixture
def tasks(pretrained, tmp_path, monkeypatch):
    """The tasks of the page, made-up data and the run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S):
        name = re.search(r"^task: (\w+)$", text, re.M)[1]
        (tmp_path / "tasks" / f"{name}.yaml").write_text(text)
    pairs = [{"sentence_good": GOOD, "sentence_bad": BAD}] * 3
    pairs += [{"sentence_good": BAD, "sentence_bad": GOOD}]
    write_lines(tmp_path / "pairs.jsonl", pairs)
    questions = [{"question": text, "answer": "a"} for text in ("", GOOD)]
    write_lines(tmp_path / "questions.jsonl", questions)
    (tmp_path / "runs/pretrain").mkdir(parents=True)
    (tmp_path / "runs/pretrain/quickstart").symlink_to(pretrained)
    return tmp_path


def requests(*arguments):
    from lm_eval.api.instance import Instance

    return [
        Instance("", {}, each if isinstance(each, tuple) else (each,), number)
        for number, each in enumerate(arguments)
    ]


def test_the_missing_package_is_named_in_one_line(monkeypatch):
    ours = "gpt1_jax.eval_harness", "gpt1_jax.studies.eval_harness"
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("gpt1_jax.eval_harness", None, "__main__")
    (line,) = ended.value.code.splitlines()  # Python prints it, with exit status 1
    assert line.startswith("gpt1_jax: error: ") and "'gpt1_jax[lm-eval]'" in line
    with pytest.raises(MissingPackage, match=r"pip install 'gpt1_jax\[lm-eval\]'"):
        runpy.run_module("gpt1_jax.eval_harness")


def encode_pair(harness, tokenizer, context, continuation):
    model = harness.RunLM.__new__(harness.RunLM)  # of which no run is read
    model._tokenizer, model._begin = tokenizer, []
    return model._encode_pair(context, continuation)


@pytest.mark.parametrize(
    ("context", "continuation", "read", "scored"),
    [
        ("ab cd", " ef", "aBcD", "eF"),
        ("ab cd ", "ef", "aBcD", "eF"),
        ("ab cd", "ef", "aB", "cdeF"),  # inside a word: all of it
        ("ab cd.\n", "ef", "aBcd®", "\neF"),
        ("", "ef gh", "\n", "eFgH"),
        ("", "\nef", "\n", "eF"),
        ("ab", " ", "aB", ""),
    ],
)
def test_the_border_is_where_the_continuation_begins(
    harness, context, continuation, read, scored
):
    def shown(ids):
        letters = [chr(i % 128) if i < 128 else chr(i % 128).upper() for i in ids]
        return "".join(letters).replace(".", "®")

    found = encode_pair(harness, Characters(), context, continuation)
    assert list(map(shown, found)) == [read, scored]


def test_gpt1_s_newline_at_the_end_of_a_context_is_scored(harness):
    tokenizer = small_gpt1_tokenizer()
    _, scored = encode_pair(harness, tokenizer, "do it.\n", "do")
    assert scored == [tokenizer.newline_id, *tokenizer.encode("do")]


def test_texts_follow_a_newline_and_their_scores_are_kept_for_lm_eval_s_cache(
    harness, model, pretrained, face, monkeypatch
):
    """With `add_bos_token` each, else those without a context."""
    kept, total = {}, face.log_probs(GOOD).sum()

    def keep(method, arguments, score):
        kept[method, arguments] = score

    monkeypatch.setattr(model.cache_hook, "add_partial", keep)
    [score] = model.loglikelihood(requests(("", GOOD)))
    rolling = model.loglikelihood_rolling(requests(GOOD, ""))
    assert score[0] == pytest.approx(total, abs=1e-4)
    assert rolling == [pytest.approx(total, abs=1e-4), 0.0]
    assert kept == {
        ("loglikelihood", ("", GOOD)): score,
        ("loglikelihood_rolling", (GOOD,)): rolling[0],
        ("loglikelihood_rolling", ("",)): 0.0,
    }
    begun = harness.RunLM(str(pretrained), add_bos_token=True)
    ((found, _),) = begun.loglikelihood(requests((GOOD, " abcd")))
    expected = face.log_probs(" abcd", context=GOOD).sum()
    assert found == pytest.approx(expected, abs=1e-4)


def test_continuations_without_tokens_are_certain(model):
    asked = [(GOOD, " abcd"), (GOOD, ""), (GOOD, "\u2581"), ("", " "), ("", "\n")]
    found = model.loglikelihood(requests(*asked))
    assert found[:1] == model.loglikelihood(requests(asked[0]))
    assert found[1:] == [(0.0, True)] * 4 and found[0][0] < 0


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("loglikelihood", (GOOD, LONG), r"24. tokens to score; this model scores up"),
        ("loglikelihood", ("\ud800", GOOD), r"lm_eval's request"),
        ("loglikelihood_rolling", (5,), r"lm_eval's request"),
        ("generate_until", (None, {"max_gen_toks": 2}), r"lm_eval's request"),
    ],
)
def test_what_cannot_be_scored_is_refused(model, method, arguments, error):
    with pytest.raises(UserError, match=error):
        getattr(model, method)(requests(arguments))


def test_texts_that_lose_their_beginning_are_counted(model, face, capsys):
    """To leave room for what is drawn, unless there cannot be any."""
    found = model.loglikelihood(requests(*[(LONG, " efgh")] * 2, ("", GOOD)))
    said = "2 of 3 texts lost their beginning, to fit 40 tokens before the last.\n"
    assert capsys.readouterr().err == said and found[0] == found[1]
    (found,) = model.generate_until(requests((LONG, {"max_gen_toks": 28})))
    kept = "abcd abcd abcd"
    assert len(face.tokenizer.encode(kept)) == 12
    assert found == face.generate(kept, max_new_tokens=28)
    said = capsys.readouterr().err
    assert "to fit 12 tokens, so that max_gen_toks=28 more fit behind" in said
    (found,) = model.generate_until(requests((GOOD, {"max_gen_toks": 60})))
    assert found == face.generate(GOOD, max_new_tokens=60)


def test_a_stop_string_is_left_out_whatever_its_case(model, face):
    text = face.generate(GOOD, max_new_tokens=12)
    stop = text[len(text) // 2 :][:2]
    arguments = {"max_gen_toks": 12, "until": [stop.upper(), "#"]}
    found = model.generate_until(requests((GOOD, arguments)))
    assert found == [text[: text.index(stop)]]


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ({"max_gen_toks": "6", "until": ["", "####"], "top_k": None}, {}),
        ({"max_tokens": 6, "do_sample": False, "temperature": 0.7}, {}),
        (
            {"max_gen_toks": 6, "temperature": 0.7, "top_p": 0.9, "top_k": 5},
            {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 5},
        ),
    ],
    ids=str,
)
def test_arguments_of_a_generation_mean_what_they_do_elsewhere(
    model, face, arguments, same
):
    """None is the default."""
    (found,) = model.generate_until(requests((GOOD, arguments)))
    assert found == face.generate(GOOD, max_new_tokens=6, **same)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"num_beams": 2}, r"unexpected keyword argument 'num_beams'\. .* top_k"),
        (None, r"generation_kwargs=None: .* Arguments are until, max_gen_toks, do_s"),
        ({"max_tokens": "x"}, r"'max_tokens': 'x'}: invalid literal"),
        ({"max_gen_toks": 10**9}, r"must be at most 32,768: .*--gen_kwargs max_gen_to"),
        ({"temperature": 10**400}, r"int too large to convert to float"),
        ({"until": 5}, r"'until': 5}: 'int' object is not iterable"),
        ({"until": ["a", None]}, r"stop_strings\[1\]=None must be text"),
    ],
    ids=str,
)
def test_impossible_arguments_of_a_generation_are_refused(model, arguments, error):
    """Values of sampling are refused as those of the job `generate` are."""
    with pytest.raises(UserError, match=error) as caught:
        model.generate_until(requests((GOOD, {"max_gen_toks": 2}), (GOOD, arguments)))
    assert "\n" not in str(caught.value)


def test_the_model_is_made_of_our_words(harness, pretrained):
    import lm_eval.api.registry

    cls = lm_eval.api.registry.get_model("gpt1_jax")
    text = f"init_from={pretrained},step=8,dtype=bfloat16,batch_size=2"
    model = cls.create_from_arg_string(text, {"batch_size": 1, "device": "cuda:0"})
    info = model.get_model_info()
    assert (info["step"], info["model_dtype"]) == (8, "bfloat16")
    assert info["init_from"] == str(pretrained) and info["model_num_parameters"] > 0
    assert model._batch_size == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("step=newest", r"missing a required argument: 'init_from'; .* as in init_fro"),
        ("init_from={run},a=1", r"argument 'a'; the arguments are in"),
        ("init_from={run},step=milestones", r"step='milestones' must be default"),
        ("init_from={run},dtype=float16", r"^dtype='float16' is not known"),
        ("init_from={run},batch_size=0", r"batch_size=0 must be auto or a number"),
        ("init_from={run},add_bos_token=2", r"^add_bos_token=2 must be True or False"),
    ],
)
def test_impossible_arguments_are_refused(harness, pretrained, text, error):
    with pytest.raises(UserError, match=error):
        harness.RunLM.create_from_arg_string(text.format(run=pretrained))


def test_the_python_of_the_page_runs_as_printed(
    harness, tasks, face, monkeypatch, capsys
):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tasks / "cache"))
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(code, namespace := {})
    better = face.log_probs(GOOD).sum() > face.log_probs(BAD).sum()
    share = 0.75 if better else 0.25
    assert namespace["results"]["results"]["my_pairs"]["acc,none"] == share
    assert str(share) in capsys.readouterr().out
    assert namespace["results"]["config"]["step"] == 12


@pytest.mark.slow
def test_the_commands_of_the_page_run_as_printed(harness, tasks):
    env = {"HF_HOME": str(tasks / "cache"), "XDG_CACHE_HOME": str(tasks / "cache")}
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S))
    lines = blocks.replace("\\\n", "").splitlines()
    commands = [line for line in lines if "gpt1_jax.eval_harness" in line]
    for command, task in zip(commands, ("my_pairs", "my_questions"), strict=True):
        _, _, _, *flags = command.split()
        program = ("-m", "gpt1_jax.eval_harness")
        code, printed = run_program(*flags, cwd=tasks, env=env, program=program)
        assert code == 0 and re.search(rf"\| *{task} *\|", printed), printed
