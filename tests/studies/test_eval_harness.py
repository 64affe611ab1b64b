"""lm_eval calls the model of a run, in Python and from its command line."""

import json
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


# --- without lm_eval ----------------------------------------------------------


@pytest.fixture
def without_lm_eval(monkeypatch):
    """lm_eval is not installed, and nothing here has imported it."""
    ours = "gpt1_jax.eval_harness", "gpt1_jax.studies.eval_harness"
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)


def test_the_missing_package_is_named_in_one_line(without_lm_eval):
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("gpt1_jax.eval_harness", None, "__main__")
    (line,) = ended.value.code.splitlines()  # Python prints it, with exit status 1
    assert line.startswith("gpt1_jax: error: ") and "'gpt1_jax[lm-eval]'" in line
    with pytest.raises(MissingPackage, match=r"pip install 'gpt1_jax\[lm-eval\]'"):
        runpy.run_module("gpt1_jax.eval_harness")


# --- tokens -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "continuation", "read", "scored"),
    [
        ("ab cd", " ef", "aBcD", "eF"),
        ("ab cd ", "ef", "aBcD", "eF"),
        ("ab cd", "ef", "aB", "cdeF"),  # inside a word: all of it
        ("ab c:", "ef", "aBc:", "eF"),
        ("ab cd.\n", "ef", "aBcd®", "\neF"),
        ("", "ef gh", "\n", "eFgH"),
        (" ", "ef gh", "\n", "eFgH"),
        ("", "\nef", "\n", "eF"),
        ("cd", "ef", "\n", "cdeF"),
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


def encode_pair(harness, tokenizer, context, continuation):
    model = harness.RunLM.__new__(harness.RunLM)  # of which no run is read
    model._tokenizer, model._begin = tokenizer, []
    return model._encode_pair(context, continuation)


def test_gpt1_s_newline_at_the_end_of_a_context_is_scored(harness):
    tokenizer = small_gpt1_tokenizer()
    _, scored = encode_pair(harness, tokenizer, "do it.\n", "do")
    assert scored == [tokenizer.newline_id, *tokenizer.encode("do")]


def test_a_newline_can_begin_every_text(harness, pretrained, face):
    model = harness.RunLM(str(pretrained), add_bos_token=True)
    ((found, _),) = model.loglikelihood(requests((GOOD, " abcd")))
    expected = face.log_probs(" abcd", context=GOOD).sum()
    assert found == pytest.approx(expected, abs=1e-4)


# --- scores -------------------------------------------------------------------


def test_greedy_is_what_the_model_would_say(model, face):
    asked, expected = [], []
    for word in ("a", "b", "the", "of", "and", "jj", "."):
        *_, second, best = face.logits(word)[-1].argsort()
        texts = [f"{word} {face.tokenizer.decode([int(i)])}" for i in (best, second)]
        for text in (*texts, f"{word} jjjj"):
            begun, ids = face.encode(word), face.encode(text)
            if len(ids) > len(begun):  # not a byte that is no text
                asked.append((word, text.removeprefix(word)))
                expected.append(ids[len(begun) :] == [best])
    found = [greedy for _, greedy in model.loglikelihood(requests(*asked))]
    assert found == expected and True in found and False in found


def test_that_long_texts_lose_their_beginning_is_said_once(model, capsys):
    long = " ".join(["abcd"] * 60)
    found = model.loglikelihood(requests(*[(long, " efgh")] * 2, ("", GOOD)))
    said = "2 of 3 texts lost their beginning, to fit 40 tokens before the last.\n"
    assert capsys.readouterr().err == said and found[0] == found[1]


def test_continuations_without_tokens_are_certain(model):
    asked = [(GOOD, " abcd"), (GOOD, ""), (GOOD, "\u2581"), ("", " "), ("", "\n")]
    found = model.loglikelihood(requests(*asked))
    assert found[:1] == model.loglikelihood(requests(asked[0]))
    assert found[1:] == [(0.0, True)] * 4 and found[0][0] < 0


def test_continuations_that_cannot_be_scored_are_refused(model):
    error = r"24. tokens to score; this model scores up to 40"
    with pytest.raises(UserError, match=error):
        model.loglikelihood(requests((GOOD, GOOD), (GOOD, "abcd " * 60)))


def test_texts_without_a_context_follow_a_newline(model, face):
    """Other scores are compared with those of lm_eval's own class."""
    total = face.log_probs(GOOD).sum()
    ((found, _),) = model.loglikelihood(requests(("", GOOD)))
    assert found == pytest.approx(total, abs=1e-4)
    rolling = model.loglikelihood_rolling(requests(GOOD, ""))
    assert rolling == [pytest.approx(total, abs=1e-4), 0.0]


def test_what_is_computed_is_kept_for_lm_eval_s_cache(model, tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(
        model.cache_hook, "add_partial", lambda *all: kept.update({all[:2]: all[2]})
    )
    scores = model.loglikelihood(requests(("", GOOD)))
    total = model.loglikelihood_rolling(requests(GOOD))
    assert kept == {
        ("loglikelihood", ("", GOOD)): scores[0],
        ("loglikelihood_rolling", (GOOD,)): total[0],
    }


# --- continuations ------------------------------------------------------------


def test_a_stop_string_is_left_out_whatever_its_case(model, face):
    text = face.generate(GOOD, max_new_tokens=12)
    stop = text[len(text) // 2 :][:2]
    arguments = {"max_gen_toks": 12, "until": [stop.upper(), "#"]}
    found = model.generate_until(requests((GOOD, arguments)))
    assert found == [text[: text.index(stop)]]


def test_samples_have_seeds_of_their_own(model, harness, pretrained):
    arguments = {"do_sample": True, "temperature": 1, "max_gen_toks": 12}
    asked = requests(*[(GOOD, arguments)] * 3)
    found = model.generate_until(asked)
    assert len(set(found)) == 3
    assert model.generate_until(asked) == found
    other = harness.RunLM(str(pretrained), seed=1)
    assert other.generate_until(asked)[:2] == found[1:]


def test_a_prompt_leaves_room_for_what_is_drawn(model, face, capsys):
    words = " ".join(["abcd"] * 60)
    (found,) = model.generate_until(requests((words, {"max_gen_toks": 28})))
    kept = "abcd abcd abcd"
    assert len(face.tokenizer.encode(kept)) == 12
    assert found == face.generate(kept, max_new_tokens=28)
    said = capsys.readouterr().err
    assert "to fit 12 tokens, so that max_gen_toks=28 more fit behind" in said


def test_a_model_of_a_short_context_still_draws_many(model, face):
    asked = [(GOOD, {"max_gen_toks": 60}), ("", {"max_gen_toks": 9, "until": None})]
    assert model.generate_until(requests(*asked)) == [
        face.generate(GOOD, max_new_tokens=60),
        face.generate("", max_new_tokens=9),
    ]


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ({"max_gen_toks": "6", "until": None, "top_k": None}, {}),
        ({"max_gen_toks": 6.0, "until": ["", "####"]}, {}),
        ({"max_new_tokens": 6, "temperature": 0, "do_sample": None}, {}),
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
        ([], r"generation_kwargs=\[\]: .* Arguments are until"),
        ({"max_tokens": "x"}, r"'max_tokens': 'x'}: invalid literal"),
        ({"max_gen_toks": float("nan")}, r"nan}: cannot convert float NaN"),
        ({"max_gen_toks": 0}, r"max_new_tokens=0 must be positive"),
        ({"max_gen_toks": 10**9}, r"must be at most 32,768: .*--gen_kwargs max_gen_to"),
        ({"max_new_tokens": [1]}, r"'max_new_tokens': \[1\]}: int"),
        ({"top_k": -1}, r"top_k=-1 must not be negative"),
        ({"do_sample": True, "temperature": "7e-1"}, r"'7e-1' must be a number"),
        ({"temperature": 10**400}, r"int too large to convert to float"),
        ({"do_sample": "yes"}, r"do_sample='yes' must be True or False"),
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


@pytest.mark.parametrize("text", [None, 5, "\ud800"], ids=ascii)
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("generate_until", ({"max_gen_toks": 2},)),
        ("loglikelihood_rolling", ()),
        ("loglikelihood", (GOOD,)),
    ],
)
def test_what_is_no_text_is_refused(model, text, method, more):
    with pytest.raises(UserError, match=r"lm_eval's request"):
        getattr(model, method)(requests((text, *more)))


# --- arguments ----------------------------------------------------------------


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
        ("init_from=nowhere", r"nowhere is not a run folder"),
        ("init_from={run},step=7", r"no checkpoint of step 7; it has \[8, 12\]"),
        ("init_from={run},step=milestones", r"step='milestones' must be default"),
        ("init_from={run},dtype=float16", r"^dtype='float16' is not known"),
        ("init_from={run},batch_size=0", r"batch_size=0 must be auto or a number"),
        ("init_from={run},seed=1.5", r"^seed=1.5 must be a whole number"),
        ("init_from={run},seed=-1", r"^seed=-1 must be a whole number in \[0, 2\*\*32"),
        ("init_from={run},add_bos_token=2", r"^add_bos_token=2 must be True or False"),
        (
            "init_from={run},pretrained=a",
            r"argument 'pretrained'; the arguments are in",
        ),
    ],
)
def test_impossible_arguments_are_refused(harness, pretrained, text, error):
    text = text.format(run=pretrained)
    with pytest.raises((UserError, FileNotFoundError), match=error):
        harness.RunLM.create_from_arg_string(text)


# --- lm_eval itself -----------------------------------------------------------


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


# Importing lm_eval takes most of the time of a command.
ONE_AFTER_ANOTHER = """
import json, sys
from gpt1_jax.eval_harness import run
for flags in json.loads(sys.argv.pop()):
    sys.argv[1:] = flags
    run()
"""


@pytest.mark.slow
def test_the_commands_of_the_page_run_as_printed(harness, tasks):
    program = ("-m", "gpt1_jax.eval_harness")
    env = {"HF_HOME": str(tasks / "cache"), "XDG_CACHE_HOME": str(tasks / "cache")}
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S))
    lines = blocks.replace("\\\n", "").splitlines()
    commands = [line for line in lines if "gpt1_jax.eval_harness" in line]
    first, second = (command.split()[3:] for command in commands)
    code, printed = run_program(*first, cwd=tasks, env=env, program=program)
    assert code == 0, printed
    assert re.search(r"\| *my_pairs *\|", printed), printed
    nowhere = ("--model_args", "init_from=nowhere", "--tasks", "tasks/my_pairs.yaml")
    program = ("-c", ONE_AFTER_ANOTHER, json.dumps([second, [*first[:2], *nowhere]]))
    code, printed = run_program(cwd=tasks, env=env, program=program)
    assert code == 1
    assert re.search(r"\| *my_questions *\|", printed), printed
    assert re.search(r"^gpt1_jax: error: .*nowhere", printed.splitlines()[-1])
    assert "Traceback" not in printed
