"""Models in other formats and back; what a converted folder can be used for."""

import dataclasses
import functools
import json
import re
import shutil
import textwrap

import numpy as np
import pytest
import tokenizers
from etils import epath
from made_up_tokenizer import small_gpt1_tokenizer
from other_formats import assert_same_params, write_bpe_files
from tiny_models import drawn_params
from tiny_run import ROOT, job_config, listing, load_config
from tiny_tasks import rows

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.config.checks import BEST
from gpt1_jax.data.files import write_json
from gpt1_jax.errors import UserError
from gpt1_jax.interop import foreign, openai
from gpt1_jax.interop.foreign import HUGGING_FACE_BPE_FILES, OPENAI_BPE_FILES
from gpt1_jax.interop.hugging_face import read_arrays, write_arrays
from gpt1_jax.interop.names import Sizes
from gpt1_jax.jobs import convert
from gpt1_jax.jobs.convert import describe_export
from gpt1_jax.runs.checkpoint_files import read_metadata, write_manifest
from gpt1_jax.runs.open import open_run

TARGETS = ("huggingface", "openai")
KEPT = {"chck_1.5M": 8, "chck_10M": 12}  # steps by the names of the challenge


def run(preset, init_from, target, **overrides):
    overrides = {"init_from": str(init_from), **overrides}
    convert.run(job_config("convert", preset, **overrides), str(target))


@pytest.fixture
def exported(pretrained, tmp_path):
    run("huggingface", pretrained, tmp_path / "exported")
    return tmp_path / "exported"


@pytest.fixture
def cut(exported):
    (exported / "model.safetensors").write_bytes(b"cut")
    return exported


@pytest.mark.parametrize(("target", "other"), [TARGETS, TARGETS[::-1]])
def test_a_run_comes_back_bit_for_bit(pretrained, tmp_path, target, other, capsys):
    """And from the export goes on to the other format."""
    before = listing(pretrained)
    run(target, pretrained, tmp_path / "exported")
    said = capsys.readouterr().out
    assert said == f"Wrote {tmp_path / 'exported'} ({target}), from {pretrained}.\n"
    run("run", tmp_path / "exported", tmp_path / "run")
    ours, back = open_run(str(pretrained)), open_run(str(tmp_path / "run"))
    assert_same_params(back.params, ours.params)
    assert back.tokenizer.digest == ours.tokenizer.digest
    # Only an LSTM has units, and no other format has an LSTM.
    same_units = dataclasses.replace(ours.model, lstm_units=back.model.lstm_units)
    assert back.model == same_units and back.config.job == "convert"
    assert listing(pretrained) == before
    assert {path.name for path in tmp_path.iterdir()} == {"exported", "run"}
    run(other, tmp_path / "exported", tmp_path / "on")
    run("run", tmp_path / "on", tmp_path / "back")
    assert_same_params(open_run(str(tmp_path / "back")).params, ours.params)
    folder = tmp_path / ("exported" if target == "openai" else "on")
    assert not any((folder / name).exists() for name in OPENAI_BPE_FILES)
    readme = (folder / "README.md").read_text()
    assert "OpenAI's two BPE files: the tokenizer is 'sentencepiece'." in readme


def test_openais_folder_becomes_a_run(tmp_path, tiny_model_config):
    """With GPT-1's own tokenizer, and the softmax of the released code."""
    pytest.importorskip("spacy")
    (tmp_path / "model").mkdir()
    model = tiny_model_config(vocab_size=20, embed_dim=64, num_heads=1, mlp_dim=256)
    params = drawn_params(model)
    openai.write_shards(epath.Path(tmp_path / "model"), Sizes.of(model), params)
    (tmp_path / "model" / "gpt1_jax.json").unlink()
    write_bpe_files(tmp_path / "model", OPENAI_BPE_FILES, vocab_size=20)
    rows = {"model__softmax_rows": "tokens+positions"}
    run("run", tmp_path / "model", tmp_path / "run", **rows)
    found = open_run(str(tmp_path / "run"))
    assert found.tokenizer.kind == "gpt1" and found.step == 0
    assert found.model.softmax_rows == "tokens+positions"
    assert_same_params(found.params, params)
    run("openai", tmp_path / "run", tmp_path / "back")
    for name in (*OPENAI_BPE_FILES, "params_0.npy", "params_shapes.json"):
        written = (tmp_path / "back" / name).read_bytes()
        assert written == (tmp_path / "model" / name).read_bytes()
    run("huggingface", tmp_path / "run", tmp_path / "hugging_face")
    readme = (tmp_path / "hugging_face" / "README.md").read_text()
    assert "The softmax was trained over tokens and positions." in readme


def held(folder):
    return read_arrays(epath.Path(folder))["transformer.tokens_embed.weight"]


@pytest.mark.parametrize("step", ["best", "8", "all"])
def test_a_step_is_chosen(pretrained, tmp_path, step):
    run("huggingface", pretrained, tmp_path / "out", step=step)
    if step == "all":
        names = {path.name for path in (tmp_path / "out").iterdir()}
        assert names == {"step-8", "step-12", "trajectory.json"}
    places = {"8": "step-8", "12": "step-12"} if step == "all" else {step: "."}
    for number, place in places.items():
        expected, folder = open_run(str(pretrained), number), tmp_path / "out" / place
        np.testing.assert_array_equal(held(folder), expected.params["wte"])
        readme = (folder / "README.md").read_text()
        assert f"from step {expected.step}, {expected.why}, of {pretrained}" in readme


def test_milestones_are_read_as_branches_without_a_network(
    pretrained, tmp_path, monkeypatch
):
    """As the BabyLM challenge reads them: texts begin with a newline."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    kept = epath.Path(shutil.copytree(pretrained, tmp_path / "kept"))
    for step, amount in ((8, 1_500_000), (12, 10_000_000)):
        metadata = read_metadata(kept, step)
        metadata["milestone"] = {"amount": amount, "unit": "words"}
        write_json(kept / f"checkpoints/{step}/metadata/metadata", metadata)
        write_manifest(kept / f"checkpoints/{step}")
    exported = tmp_path / "exported" / "babylm"
    run("huggingface", kept, exported, step="milestones")
    assert {path.name for path in exported.glob("chck*")} == set(KEPT)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported / "chck_10M")
    ids = open_run(str(pretrained)).tokenizer.encode("\nabc")
    assert tokenizer("abc")["input_ids"] == ids
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    blocks = re.findall(r"^```python\n(.*?)^```$", pages, re.M | re.S)
    (as_documented,) = (block for block in blocks if "models--" in block)
    exec(as_documented.replace("chck_100M", "chck_10M"), {})
    load = functools.partial(
        transformers.AutoModelForCausalLM.from_pretrained,
        "YOU/gpt1-babylm",
        cache_dir=tmp_path / "hub",
        local_files_only=True,
    )
    for branch, step in {**KEPT, "main": 12}.items():
        found = load(revision=branch).transformer.tokens_embed.weight
        expected = open_run(str(kept), step).params["wte"]
        np.testing.assert_array_equal(found.detach(), expected)
    with pytest.raises(OSError, match=r"cache"):
        load(revision="chck_2M")


def test_choices_are_exported(choosing, tmp_path):
    run("huggingface", choosing, tmp_path / "out", step="best")
    found = read_arrays(epath.Path(tmp_path / "out"))
    kernel = open_run(str(choosing), BEST).params["head"]["kernel"]
    theirs = found["multiple_choice_head.summary.weight"]
    np.testing.assert_array_equal(theirs, kernel.T)
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "ids 512 (start), 513" in readme
    assert "Fine-tuning cut inputs to 40 tokens with special tokens" in readme
    assert "pipeline" not in readme


WORDING = 'Does "{span2_text}" refer to "{span1_text}" in this passage?'


def test_the_wording_of_a_task_is_in_the_readme(finetuned, tmp_path):
    """WSC has two labels as well: the run could have been trained on it."""
    folder = shutil.copytree(finetuned, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["tasks"] = ["wsc"]
    (folder / "config.json").write_text(json.dumps(config))
    run("huggingface", folder, tmp_path / "out")
    readme = " ".join((tmp_path / "out" / "README.md").read_text().split())
    assert f"The two texts are '{WORDING}' and '{{text}}'." in readme


def code_of_readme(folder):
    """The code that uses a head, as the README has it; returns what it defines."""
    readme = (folder / "README.md").read_text()
    section = readme.split("## Use it")[1].split("\n- ")[0]
    code = textwrap.dedent(section).replace("THIS_FOLDER", str(folder))
    *lines, call = code.strip().splitlines()
    exec("\n".join([*lines, f"answer = {call}"]), defined := {})
    return defined


def assert_same_answers(ours, theirs):
    """Probabilities of `predict`, and what a pipeline says of the same texts."""
    for expected, answer in zip(ours, theirs, strict=True):
        scores = {each["label"]: each["score"] for each in answer}
        assert scores == pytest.approx(expected["probabilities"], abs=1e-5)


def test_an_export_labels_text_as_predict_does(past_its_best, tmp_path):
    """As the README says. Of the step that the run was scored at, not the newest.

    Alone or in batches; the names of special tokens are text in a text. A long one,
    too, which is cut as in fine-tuning.
    """
    pytest.importorskip("transformers")
    run("huggingface", past_its_best, tmp_path / "out")
    used = code_of_readme(tmp_path / "out")
    best, newest = (
        gpt1_jax.load(str(past_its_best), step).predict for step in ("best", "newest")
    )
    assert_same_answers(best(["{sentence}"]), [used["answer"]])
    texts = [row["sentence"] for row in rows("sst2", 100, seed=9)]
    assert [each["label"] for each in best(texts)] != [
        each["label"] for each in newest(texts)
    ]
    texts += ["b", "bcd aaaa\nefg", "<|extract|> hi <|start|>", "<unk>"]
    texts += [" ".join(texts[:9])]
    label = used["classify"]
    for batch_size in (1, 5):
        found = label(texts, batch_size=batch_size, truncation=True, top_k=None)
        assert_same_answers(best(texts), found)
    assert len(label.tokenizer) == label.model.config.vocab_size
    assert label.tokenizer.pad_token_id == label.model.config.pad_token_id
    readme = (tmp_path / "out" / "README.md").read_text()
    assert ", the best by validation accuracy, of" in readme
    assert "Labels: 'negative', 'positive'." in readme


def test_pairs_are_labelled_as_the_readme_says(of_pairs, tmp_path):
    """Calibrated as by predict, and in the order of the columns; long ones, too."""
    pytest.importorskip("transformers")
    run("huggingface", of_pairs, tmp_path / "out")
    classify = code_of_readme(tmp_path / "out")["classify"]
    pairs = [("bcd", "aaaa jjjj"), ("aaaa jjjj", "bcd"), ("hi", "ice dh"), ("a", "b")]
    ours = gpt1_jax.load(str(of_pairs)).predict(pairs)
    given = [{"text": one, "text_pair": other} for one, other in pairs]
    found = classify(given, truncation=True, top_k=None, batch_size=2)
    assert_same_answers(ours, found)
    assert classify.tokenizer.model_max_length == 24
    long = " ".join(row["sentence1"] for row in rows("rte", 30, seed=9))
    for one, other in (("aaaa", long), (long, "aaaa"), (long, long)):
        answer = classify({"text": one, "text_pair": other}, truncation=True)
        assert answer.keys() == {"label", "score"}
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "until 24 tokens are left, but fine-tuning cut inputs to 24 tok" in readme
    assert "The probabilities are calibrated: the outputs are divided by" in readme
    assert "Score on 40 dev examples: accuracy " in readme


def test_a_run_folder_in_use_is_not_touched(exported, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "config.json").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds config.json, and nothing there "):
        run("run", exported, tmp_path / "used")
    assert (tmp_path / "used" / "config.json").read_text() == "mine"
    assert len(list((tmp_path / "used").iterdir())) == 1


@pytest.mark.parametrize(
    ("source", "target", "step", "message"),
    [
        ("pretrained", "openai", "milestones", r"no milestone .*_words, .* \[8, 12\]"),
        ("pretrained", "openai", "9", r"no checkpoint of step 9; it has \[8, 12\]"),
        ("finetuned", "openai", "default", "head and the special tokens .* no place"),
        ("finetuned", "run", "default", "is a run folder already"),
        ("exported", "run", "best", "config.step='best', but .* no steps"),
        ("cut", "run", "default", r"safetensors is damaged"),
        (ROOT / "tests/saved_runs/1.0.0/zero_shot", "openai", "default", "no model"),
        (ROOT / "tests/saved_runs", "run", "default", "no model: a run folder has a"),
    ],
    ids=str,
)
def test_what_cannot_be_converted_is_refused(
    request, tmp_path, source, target, step, message
):
    """In one line, with nothing left behind."""
    place = request.getfixturevalue(source) if isinstance(source, str) else source
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        run(target, place, tmp_path / "out", step=step)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_rows_beyond_the_tokenizer_are_left_out(exported, pretrained, tmp_path, capsys):
    """Added tokens, or a vocabulary that was padded. Fewer rows are refused."""
    config = json.loads((exported / "config.json").read_text())
    arrays = read_arrays(epath.Path(exported))
    name = "transformer.tokens_embed.weight"

    def convert_with(rows):
        write_arrays(epath.Path(exported), {**arrays, name: rows})
        changed = {**config, "vocab_size": len(rows)}
        (exported / "config.json").write_text(json.dumps(changed))
        run("run", exported, tmp_path / "out")

    with pytest.raises(ValueError, match=r"has 512 entries; .* 511 rows\. They do not"):
        convert_with(arrays[name][:-1])
    convert_with(np.pad(arrays[name], ((0, 5), (0, 0))))
    assert "The last 5 rows of the token embedding, " in capsys.readouterr().out
    ours, back = open_run(str(pretrained)), open_run(str(tmp_path / "out"))
    assert_same_params(back.params, ours.params)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", b"{}", "neither gpt1_jax_tokenizer/ nor enco"),
        ("tokenizer.json", b'{"model": null}', r"tokenizer\.json is neither"),
        (
            "tokenizer.json",
            b'{"model": {"type": "BPE", "vocab": 3}}',
            r"tokenizer\.json cannot",
        ),
    ],
    ids=["none", "of no kind", "damaged"],
)
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((UserError, FileNotFoundError), match=message) as caught:
        foreign.read_tokenizer(epath.Path(tmp_path), 20)
    assert "\n" not in str(caught.value)


def test_our_export_saved_again_by_transformers_is_read(pretrained, tmp_path):
    """It has lost our copy of the tokenizer, and keeps its rules."""
    transformers = pytest.importorskip("transformers")
    run("huggingface", pretrained, tmp_path / "ours")
    for name in ("AutoModelForCausalLM", "AutoTokenizer"):
        theirs = getattr(transformers, name).from_pretrained(str(tmp_path / "ours"))
        theirs.save_pretrained(tmp_path / "again")
    run("run", tmp_path / "again", tmp_path / "back")
    before, after = open_run(str(pretrained)), open_run(str(tmp_path / "back"))
    assert_same_params(after.params, before.params)
    assert after.tokenizer.kind == "huggingface"
    text = "the quick Fox\n\njumps, 漢"
    assert after.tokenizer.encode(text) == before.tokenizer.encode(text)


@pytest.mark.parametrize("pairs", [True, False])
def test_gpt1s_tokenizer_is_read_from_tokenizer_json(tmp_path, pairs):
    """The only file that transformers 5 writes; merges are pairs or lines."""
    ours = small_gpt1_tokenizer()
    model = json.loads(tokenizers.Tokenizer(ours.bpe).to_str())["model"]
    merges = [merge if pairs else " ".join(merge) for merge in model["merges"]]
    saved = json.dumps({"model": {**model, "merges": merges}})
    (tmp_path / "tokenizer.json").write_text(saved)
    read = foreign.read_tokenizer(epath.Path(tmp_path), ours.vocab_size)
    for text in ("Mr. Do\ndon't", "mr . do", ""):
        assert read.encode(text) == ours.encode(text)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a": "b"}'])
def test_files_that_are_no_vocabulary_are_refused(tmp_path, text):
    pytest.importorskip("spacy")
    write_bpe_files(tmp_path, HUGGING_FACE_BPE_FILES, vocab_size=20)
    (tmp_path / "vocab.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"vocab.json and merges.txt in .* are not"):
        foreign.read_tokenizer(epath.Path(tmp_path), 20)


def test_an_export_says_what_it_is_where_from_and_how_to_load_it():
    model = config_lib.load(load_config("paper").to_dict()).model.with_vocab_size(40478)
    way_back = "configs/convert.py:run \\\n        --conf"
    text = describe_export(model, "runs/a", "gpt1", "OpenAIGPTLMHeadModel", ("No Z.",))
    assert "12 layers, 768 wide, 116,534,784 parameters; 12 heads, 512 pos" in text
    assert f"gpt1_jax {gpt1_jax.__version__} from runs/a" in text
    assert 'AutoModelForCausalLM.from_pretrained("THIS_FOLDER")' in text
    assert "- No Z.\n" in text and way_back in text
    shards = describe_export(model, "runs/a", "gpt1")
    assert "params_shapes.json" in shards and "transformers" not in shards
    text = describe_export(model, "runs/a", "gpt1", "OpenAIGPTDoubleHeadsModel")
    assert "import OpenAIGPTDoubleHeadsModel, AutoTokenizer" in text
    assert "configs/convert.py" not in text  # heads are not read back
