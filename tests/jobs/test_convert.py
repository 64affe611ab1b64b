"""Models in other formats and back; what a converted folder can be used for."""

import dataclasses
import functools
import json
import re
import shutil
import textwrap

import jax
import numpy as np
import pytest
import tokenizers
from etils import epath
from made_up_tokenizer import small_gpt1_tokenizer
from other_formats import Harm, assert_same_params, write_bpe_files
from tiny_models import all_logits, drawn_params, random_tokens
from tiny_run import ROOT, load_config, stop_after
from tiny_tasks import finetune_config, read_lines, rows, write_lines

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.config.checks import BEST
from gpt1_jax.data.files import write_json
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.interop import foreign, hugging_face, openai
from gpt1_jax.interop.foreign import HUGGING_FACE_BPE_FILES, OPENAI_BPE_FILES
from gpt1_jax.interop.hugging_face import read_arrays, write_arrays
from gpt1_jax.interop.names import Sizes
from gpt1_jax.jobs import convert, finetune, predict
from gpt1_jax.jobs.convert import describe_export
from gpt1_jax.runs.checkpoint_files import read_metadata, write_manifest
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.signals import Stopped
from gpt1_jax.training.validation import sequence_losses

TARGETS = ("huggingface", "openai")


@pytest.fixture(scope="module")
def converted(pretrained, made_once):
    """A run folder that was a Hugging Face folder before."""

    def make(folder):
        run("huggingface", pretrained, folder / "exported")
        run("run", folder / "exported", folder / "run")

    return made_once("converted", make) / "run"


def run(preset, init_from, target, **overrides):
    overrides = {"init_from": str(init_from), **overrides}
    values = load_config(preset, file="convert", **overrides).to_dict()
    convert.run(config_lib.load(values), str(target))


def contents(folder):
    """Every file and folder in it, and when it was written."""
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


# --- there and back -----------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_comes_back_bit_for_bit(pretrained, tmp_path, target, capsys):
    before = contents(pretrained)
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
    assert contents(pretrained) == before
    assert {path.name for path in tmp_path.iterdir()} == {"exported", "run"}


def test_from_one_foreign_format_to_the_other(pretrained, tmp_path):
    run("openai", pretrained, tmp_path / "one")
    run("huggingface", tmp_path / "one", tmp_path / "two")
    run("openai", tmp_path / "two", tmp_path / "three")
    for path in (tmp_path / "one").glob("params_*"):
        assert path.read_bytes() == (tmp_path / "three" / path.name).read_bytes()


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
    for name in (
        *OPENAI_BPE_FILES,
        "params_0.npy",
        "params_9.npy",
        "params_shapes.json",
    ):
        written = (tmp_path / "back" / name).read_bytes()
        assert written == (tmp_path / "model" / name).read_bytes()
    run("huggingface", tmp_path / "run", tmp_path / "hugging_face")
    readme = (tmp_path / "hugging_face" / "README.md").read_text()
    assert "The softmax was trained over tokens and positions." in readme


# --- steps --------------------------------------------------------------------------


def held(folder):
    return read_arrays(epath.Path(folder))["transformer.tokens_embed.weight"]


@pytest.mark.parametrize("step", ["default", "best", "8"])
def test_a_step_is_chosen(pretrained, tmp_path, step):
    run("huggingface", pretrained, tmp_path / "out", step=step)
    expected = open_run(str(pretrained), step)
    np.testing.assert_array_equal(held(tmp_path / "out"), expected.params["wte"])
    readme = (tmp_path / "out" / "README.md").read_text()
    assert f"from step {expected.step}, {expected.why}, of {pretrained}" in readme


def test_all_steps_are_exported(pretrained, tmp_path):
    run("huggingface", pretrained, tmp_path / "out", step="all")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "step-8",
        "step-12",
        "trajectory.json",
    }
    for step in (8, 12):
        expected = open_run(str(pretrained), step).params["wte"]
        np.testing.assert_array_equal(held(tmp_path / f"out/step-{step}"), expected)


@pytest.fixture(scope="module")
def kept(pretrained, made_once):
    """A copy of the run, whose two steps say that they were kept for good."""

    def make(folder):
        shutil.copytree(pretrained, folder)
        for step, amount in ((8, 1_500_000), (12, 10_000_000)):
            checkpoint = epath.Path(folder) / f"checkpoints/{step}"
            metadata = read_metadata(epath.Path(folder), step)
            metadata["milestone"] = {"amount": amount, "unit": "words"}
            write_json(checkpoint / "metadata" / "metadata", metadata)
            write_manifest(checkpoint)

    return made_once("kept", make)


def test_kept_steps_are_exported_under_the_names_of_the_challenge(kept, tmp_path):
    run("huggingface", kept, tmp_path / "out", step="milestones")
    names = {"chck_1.5M": 8, "chck_10M": 12}
    assert {path.name for path in (tmp_path / "out").glob("chck*")} == set(names)
    for name, step in names.items():
        expected = open_run(str(kept), step).params["wte"]
        np.testing.assert_array_equal(held(tmp_path / "out" / name), expected)


def test_the_name_of_a_kept_step_tells_its_unit(kept, tmp_path):
    folder = epath.Path(shutil.copytree(kept, tmp_path / "run"))
    for step, unit in ((8, "tokens"), (12, "steps")):
        metadata = read_metadata(folder, step)
        metadata["milestone"] = {"amount": 2000, "unit": unit}
        checkpoint = folder / f"checkpoints/{step}"
        write_json(checkpoint / "metadata" / "metadata", metadata)
        write_manifest(checkpoint)
    run("huggingface", folder, tmp_path / "out", step="milestones")
    names = {path.name for path in (tmp_path / "out").glob("chck*")}
    assert names == {"chck_2k_tokens", "chck_2k_steps"}


def test_kept_steps_are_scored_by_transformers(kept, tmp_path):
    """As the challenge does: `AutoModelForCausalLM`, offsets, a token for padding."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run("huggingface", kept, tmp_path / "out", step="milestones")
    text, losses = "Abc def, ghi.", jax.jit(sequence_losses, static_argnums=0)
    for name, step in (("chck_1.5M", 8), ("chck_10M", 12)):
        folder = tmp_path / "out" / name
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        read = tokenizer(text, return_offsets_mapping=True)
        starts, ends = zip(*read["offset_mapping"], strict=True)
        assert starts[0] == 0 and ends[-1] == len(text)
        assert list(starts) == sorted(starts) and list(ends) == sorted(ends)
        ours = open_run(str(kept), step)
        newline = ours.tokenizer.newline_id
        assert read["input_ids"] == [newline, *ours.tokenizer.encode(text)]
        assert tokenizer.bos_token_id == tokenizer.pad_token_id == newline
        ids = torch.tensor([read["input_ids"]])
        with torch.no_grad():
            loss = model(input_ids=ids, labels=ids).loss.item()
        lengths = np.array([ids.shape[1]])
        nll, counted = losses(ours.model, ours.params, ids.numpy(), lengths)
        assert loss == pytest.approx(float(nll[0] / counted[0]), abs=1e-4)


def test_one_step_is_exported_without_a_start_token(kept, tmp_path):
    transformers = pytest.importorskip("transformers")
    run("huggingface", kept, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = open_run(str(kept)).tokenizer.encode("Abc def")
    assert tokenizer("Abc def")["input_ids"] == ids and tokenizer.bos_token is None
    assert tokenizer.decode(ids[:1]) == open_run(str(kept)).tokenizer.decode(ids[:1])


def test_surprisals_of_the_challenge_equal_ours(kept, tmp_path):
    """Its walk over a word: each token decoded, appended to the context, encoded."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run("huggingface", kept, tmp_path / "out", step="milestones")
    folder = tmp_path / "out" / "chck_10M"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    text = 'The Zebra\'s "Xylo"'
    words = gpt1_jax.load(str(kept), 12).surprisal(text)
    assert sum(word.num_tokens > 2 for word in words) > 2
    for word in words:
        context, nats = text[: word.start].rstrip(), 0.0
        for token in tokenizer(word.word, add_special_tokens=False)["input_ids"]:
            piece = tokenizer.decode(token)
            target = tokenizer(piece, add_special_tokens=False)["input_ids"][0]
            with torch.no_grad():
                logits = model(**tokenizer(context, return_tensors="pt")).logits
            nats -= logits[0, -1].log_softmax(-1)[target].item()
            context += piece
        assert nats == pytest.approx(word.nats, abs=1e-4), word.word


# --- milestones as branches of a repository -------------------------------------------


def documented(name, **replaced):
    """The one Python block in docs/ that mentions `name`, to be run."""
    blocks = (
        block
        for page in (ROOT / "docs").glob("*.md")
        for block in re.findall(
            r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S
        )
    )
    (found,) = (block for block in blocks if name in block)
    for old, new in replaced.items():
        assert old in found
        found = found.replace(old, new)
    return found


def test_milestones_are_read_as_branches_without_a_network(kept, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    run("huggingface", kept, tmp_path / "exported" / "babylm", step="milestones")
    exec(documented("models--", chck_100M="chck_10M"), {})
    load = functools.partial(
        transformers.AutoModelForCausalLM.from_pretrained,
        "YOU/gpt1-babylm",
        cache_dir=tmp_path / "hub",
        local_files_only=True,
    )
    for branch, step in {"chck_1.5M": 8, "chck_10M": 12, "main": 12}.items():
        found = load(revision=branch).transformer.tokens_embed.weight
        expected = open_run(str(kept), step).params["wte"]
        np.testing.assert_array_equal(found.detach(), expected)
    with pytest.raises(OSError, match=r"cache"):
        load(revision="chck_2M")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            "milestones",
            r"holds no milestone .*_words, .* \[8, 12\]",
        ),
        ("last", r"step='last' must be default, newest, best"),
        ("-1", r"step='-1' must be"),
        ("9", r"has no checkpoint of step 9; it has \[8, 12\]"),
    ],
)
def test_a_step_that_is_not_there_is_refused(pretrained, tmp_path, step, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run("openai", pretrained, tmp_path / "out", step=step)
    assert list(tmp_path.iterdir()) == []


# --- as transformers reads it -------------------------------------------------------


def test_transformers_computes_the_same_logits(pretrained, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run("huggingface", pretrained, tmp_path / "out")
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values()), info
    ours = open_run(str(pretrained))
    tokens = random_tokens((2, 40), ours.model.vocab_size)
    with torch.no_grad():
        found = theirs.eval()(torch.tensor(np.asarray(tokens))).logits.numpy()
    expected = np.asarray(all_logits(ours.model, ours.params, tokens))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_choices_are_exported(choosing, tmp_path):
    run("huggingface", choosing, tmp_path / "out", step="best")
    found = read_arrays(epath.Path(tmp_path / "out"))
    trained = open_run(str(choosing), BEST)
    kernel, bias = (trained.params["head"][name] for name in ("kernel", "bias"))
    theirs = "multiple_choice_head.summary"
    np.testing.assert_array_equal(found[f"{theirs}.weight"], kernel.T)
    np.testing.assert_array_equal(found[f"{theirs}.bias"], bias)
    tokens = found["transformer.tokens_embed.weight"]
    np.testing.assert_array_equal(tokens, trained.params["transformer"]["wte"])
    assert len(tokens) == trained.tokenizer.vocab_size + 3
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "ids 512 (start), 513" in readme
    assert "Fine-tuning cut inputs to 40 tokens with special tokens" in readme
    assert "pipeline" not in readme


def test_the_wording_of_a_task_is_in_the_readme(finetuned, tmp_path):
    """WSC has two labels as well, and could have been what the run was trained on."""
    folder = shutil.copytree(finetuned, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tasks": ["wsc"]}))
    run("huggingface", folder, tmp_path / "out")
    readme = (tmp_path / "out" / "README.md").read_text()
    wording = 'Does "{span2_text}" refer to "{span1_text}" in this passage?'
    assert f"The two texts are '{wording}' and '{{text}}'." in " ".join(readme.split())


def test_the_template_of_a_task_is_in_the_readme(finetuned, tmp_path):
    folder = shutil.copytree(finetuned, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["tasks"], config["data"]["source"] = ["custom"], "files"
    own = {"head": "classification", "labels": ["no", "yes"], "template": "{a}: {b}"}
    config["custom"] |= own
    (folder / "config.json").write_text(json.dumps(config))
    run("huggingface", folder, tmp_path / "out")
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "The text is '{a}: {b}'." in " ".join(readme.split())


def test_classes_are_exported(finetuned, tmp_path):
    """Their class has no bias, but computes the same logits."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run("huggingface", finetuned, tmp_path / "out", step="best")
    theirs, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values()), info
    trained = open_run(str(finetuned), BEST)
    assert trained.params["head"]["bias"].all()
    extract = trained.tokenizer.vocab_size + 2
    tokens = np.array(random_tokens((3, 1, 20), extract))
    tokens[..., -1] = extract
    head = Head(len(theirs.config.id2label), False, 0.0, extract)
    apply = jax.jit(heads.apply, static_argnums=(0, 1))
    expected, _ = apply(trained.model, head, trained.params, tokens)
    with torch.no_grad():
        found = theirs.eval()(torch.tensor(tokens[:, 0])).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_export_labels_text_as_predict_does(past_its_best, tmp_path):
    """What is exported is the step that the run was scored at, not the newest."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sentences = [row["sentence"] for row in rows("sst2", 100, seed=9)]
    (tmp_path / "new.txt").write_text("\n".join(sentences))

    def predicted(name, **step):
        output = str(tmp_path / name)
        given = {"init_from": str(past_its_best), "input": str(tmp_path / "new.txt")}
        values = load_config("", file="predict", output=output, **given, **step)
        predict.run(config_lib.load(values.to_dict()), "")
        return [line["prediction"] for line in read_lines(output)]

    run("huggingface", past_its_best, tmp_path / "out")
    readme = (tmp_path / "out" / "README.md").read_text()
    assert ", the best by validation accuracy, of" in readme
    start = int(re.search(r"ids (\d+) \(start\)", readme)[1])
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    model = load(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    labels = []
    for sentence in sentences:
        ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([[start, *ids, start + 2]])).logits[0]
        labels.append(model.config.id2label[int(logits.argmax())])
    assert labels == predicted("default.jsonl")
    assert labels != predicted("newest.jsonl", step="newest")


def test_a_pipeline_labels_batches_as_predict_does(finetuned, tmp_path):
    """Special tokens stand in their places; the names of such are text in a text."""
    transformers = pytest.importorskip("transformers")
    sentences = [row["sentence"] for row in rows("sst2", 9, seed=9)]
    sentences += ["b", "bcd aaaa\nefg", "<|extract|> hi <|start|>", "<unk>"]
    lines = [{"sentence": sentence} for sentence in sentences]
    write_lines(tmp_path / "new.jsonl", lines)
    output, given = tmp_path / "labels.jsonl", {"init_from": str(finetuned)}
    given |= {"input": str(tmp_path / "new.jsonl"), "output": str(output)}
    values = load_config("", file="predict", **given)
    predict.run(config_lib.load(values.to_dict()), "")
    expected = [
        {name: line[f"P({name})"] for name in ("negative", "positive")}
        for line in read_lines(output)
    ]

    run("huggingface", finetuned, tmp_path / "out")
    label = transformers.pipeline("text-classification", str(tmp_path / "out"))
    for batch_size in (1, 2, 5):
        found = label(sentences, batch_size=batch_size, top_k=None)
        for ours, theirs in zip(expected, found, strict=True):
            theirs = {each["label"]: each["score"] for each in theirs}
            assert theirs == pytest.approx(ours, abs=1e-5)
    assert len(label.tokenizer) == label.model.config.vocab_size
    assert label.tokenizer.pad_token_id == label.model.config.pad_token_id


def code_of_readme(folder):
    """The code that uses a head, as the README has it; returns what it defines."""
    readme = (folder / "README.md").read_text()
    section = readme.split("## Use it")[1].split("\n- ")[0]
    code = textwrap.dedent(section).replace("THIS_FOLDER", str(folder))
    *lines, call = code.strip().splitlines()
    exec("\n".join([*lines, f"answer = {call}"]), defined := {})
    return defined


def test_a_single_text_is_labelled_as_the_readme_says(finetuned, tmp_path):
    pytest.importorskip("transformers")
    run("huggingface", finetuned, tmp_path / "out")
    used = code_of_readme(tmp_path / "out")
    (ours,) = gpt1_jax.load(str(finetuned)).predict(["{sentence}"])
    found = {each["label"]: each["score"] for each in used["answer"]}
    assert found == pytest.approx(ours["probabilities"], abs=1e-5)
    # A long text, too, which is cut as in fine-tuning.
    text = " ".join(row["sentence"] for row in rows("sst2", 20, seed=9))
    (ours,) = gpt1_jax.load(str(finetuned)).predict([text])
    answer = used["classify"](text, truncation=True, top_k=None)
    found = {each["label"]: each["score"] for each in answer}
    assert found == pytest.approx(ours["probabilities"], abs=1e-5)
    readme = (tmp_path / "out" / "README.md").read_text()
    result = json.loads((finetuned / "results.json").read_text())
    score = f"Score on 12 dev examples: accuracy {100 * result['dev']['accuracy']:.1f}."
    assert score in readme and "Labels: 'negative', 'positive'." in readme


def test_pairs_are_labelled_as_the_readme_says(of_pairs, tmp_path):
    """Calibrated as by predict, and in the order of the columns; long ones, too."""
    pytest.importorskip("transformers")
    run("huggingface", of_pairs, tmp_path / "out")
    used = code_of_readme(tmp_path / "out")
    assert len(used["answer"]) == 2
    classify = used["classify"]
    pairs = [("bcd", "aaaa jjjj"), ("aaaa jjjj", "bcd"), ("hi", "ice dh"), ("a", "b")]
    ours = gpt1_jax.load(str(of_pairs)).predict(pairs)
    given = [{"text": one, "text_pair": other} for one, other in pairs]
    found = classify(given, truncation=True, top_k=None, batch_size=2)
    for expected, answer in zip(ours, found, strict=True):
        scores = {each["label"]: each["score"] for each in answer}
        assert scores == pytest.approx(expected["probabilities"], abs=1e-5)
    assert classify.tokenizer.model_max_length == 24
    long = " ".join(row["sentence1"] for row in rows("rte", 30, seed=9))
    for one, other in (("aaaa", long), (long, "aaaa"), (long, long)):
        answer = classify({"text": one, "text_pair": other}, truncation=True)
        assert answer.keys() == {"label", "score"}
    readme = (tmp_path / "out" / "README.md").read_text()
    for said in (
        "more than 40 tokens end in an error",
        "until 24 tokens are left, but fine-tuning cut inputs to 24 tokens, 10 for",
        "The probabilities are calibrated: the outputs are divided by the temp",
    ):
        assert said in readme


def test_several_labels_are_told_by_a_pipeline_as_by_predict(
    of_several_labels, tmp_path
):
    pytest.importorskip("transformers")
    run("huggingface", of_several_labels, tmp_path / "out")
    classify = code_of_readme(tmp_path / "out")["classify"]
    texts = [row["sentence"] for row in rows("sst2", 6, seed=9)]
    ours = gpt1_jax.load(str(of_several_labels)).predict(texts)
    theirs = classify(texts, truncation=True, top_k=None)
    for expected, answer in zip(ours, theirs, strict=True):
        scores = {each["label"]: each["score"] for each in answer}
        assert scores == pytest.approx(expected["probabilities"], abs=1e-5)
        applies = [label for label in sorted(scores) if scores[label] >= 0.5]
        assert expected["label"] == applies
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "Each label with a score of at least 0.5 applies" in readme
    assert "Score on 48 dev examples: micro_f1" in readme


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("openai", r"The head and the special tokens of a fine-tuned .* have no place"),
        ("run", r"is a run folder already"),
    ],
)
def test_what_has_no_place_is_named(finetuned, tmp_path, target, message):
    with pytest.raises(ValueError, match=message) as caught:
        run(target, finetuned, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# --- what a converted run can be used for -------------------------------------------


def test_fine_tuning_starts_from_a_converted_run(
    converted, finetune_base, tmp_path, monkeypatch
):
    base = {**finetune_base, "init_from": str(converted)}
    stop_after(monkeypatch, 1)
    with pytest.raises(Stopped):
        finetune.run(finetune_config("sst2", base), str(tmp_path / "run"))
    params, origin = (open_run(str(f)).params for f in (tmp_path / "run", converted))
    words = params["transformer"]["wte"]
    np.testing.assert_array_equal(words[: len(origin["wte"])], origin["wte"])
    assert params["head"]["bias"].shape == (2,)


def test_fine_tuning_does_not_start_from_a_fine_tuned_run(
    finetuned, finetune_base, tmp_path
):
    base = {**finetune_base, "init_from": str(finetuned)}
    with pytest.raises(ValueError, match=r"job 'finetune'; fine-tuning starts from a"):
        finetune.run(finetune_config("sst2", base), str(tmp_path))


def test_a_converted_run_has_no_labels(converted):
    values = load_config("", file="predict", init_from=str(converted), text="a")
    with pytest.raises(
        ValueError, match=r"job 'convert'; labels need a fine-tuned one"
    ):
        predict.run(config_lib.load(values.to_dict()), "")


def test_a_converted_run_is_exported_again(converted, pretrained, tmp_path):
    run("openai", converted, tmp_path / "again")
    run("openai", pretrained, tmp_path / "first")
    for path in (tmp_path / "first").glob("params_*"):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["run", *TARGETS])
def test_a_folder_in_use_is_not_touched(pretrained, tmp_path, preset):
    (tmp_path / "config.json").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match=r"holds config.json, and nothing there "):
        run(preset, pretrained, tmp_path)
    assert contents(tmp_path) == before


def test_an_empty_folder_is_used(pretrained, tmp_path):
    run("openai", pretrained, tmp_path)
    assert (tmp_path / "params_9.npy").exists()


@pytest.mark.parametrize("files", [{}, {"config.json": "{}"}, {"a.npy": ""}], ids=str)
def test_a_folder_without_a_model_is_refused(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FileNotFoundError, match=r"holds no model: a run folder has a"):
        run("run", tmp_path, tmp_path / "out")


def test_what_a_job_without_a_model_wrote_is_refused(tmp_path):
    results = ROOT / "tests" / "saved_runs" / "1.0.0" / "zero_shot"
    with pytest.raises(ValueError, match=r"output of the job 'zero_shot', no model"):
        run("huggingface", results, tmp_path / "out")


@pytest.fixture
def exported(pretrained, tmp_path):
    run("huggingface", pretrained, tmp_path / "exported")
    return tmp_path / "exported"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda f: (
                shutil.rmtree(f / "gpt1_jax_tokenizer"),
                (f / "tokenizer.json").unlink(),
            ),
            r"holds no tokenizer",
        ),
        (
            lambda f: (f / "model.safetensors").write_bytes(b"cut"),
            r"safetensors is damaged",
        ),
        (lambda f: (f / "model.safetensors").unlink(), r"holds no weights"),
    ],
    ids=["tokenizer", "truncated", "weights"],
)
def test_a_damaged_folder_leaves_nothing_behind(exported, tmp_path, spoil, message):
    spoil(exported)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run("run", exported, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [exported]


def test_a_vocabulary_that_does_not_fit_is_refused(exported, tmp_path):
    config = json.loads((exported / "config.json").read_text())
    arrays = read_arrays(epath.Path(exported))
    name = "transformer.tokens_embed.weight"
    smaller = {**arrays, name: arrays[name][:-1]}
    write_arrays(epath.Path(exported), smaller)
    (exported / "config.json").write_text(json.dumps({**config, "vocab_size": 511}))
    with pytest.raises(ValueError, match=r"has 512 entries; .* 511 rows\. They do not"):
        run("run", exported, tmp_path / "out")


def test_rows_beyond_the_tokenizer_are_left_out(exported, pretrained, tmp_path, capsys):
    """Added tokens, or a vocabulary that was padded."""
    config = json.loads((exported / "config.json").read_text())
    arrays = read_arrays(epath.Path(exported))
    name = "transformer.tokens_embed.weight"
    larger = {**arrays, name: np.pad(arrays[name], ((0, 5), (0, 0)))}
    write_arrays(epath.Path(exported), larger)
    (exported / "config.json").write_text(json.dumps({**config, "vocab_size": 517}))
    run("run", exported, tmp_path / "out")
    assert "The last 5 rows of the token embedding, " in capsys.readouterr().out
    ours, back = open_run(str(pretrained)), open_run(str(tmp_path / "out"))
    assert_same_params(back.params, ours.params)


def test_steps_of_a_folder_without_steps_are_refused(exported, tmp_path):
    with pytest.raises(ValueError, match=r"config.step='best', but .* no steps"):
        run("run", exported, tmp_path / "out", step="best")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"init_from": ""}, r"Name what to convert with --config.init_from"),
        ({"target": "onnx"}, r"config.target='onnx' is not known"),
        ({"model__dtype": "int8"}, r"config.model.dtype='int8'"),
        ({"model__attn_dropout": 1.0}, r"config.model.attn_dropout=1.0"),
    ],
    ids=str,
)
def test_impossible_values_are_refused(overrides, message):
    values = load_config("run", file="convert", **{"init_from": "a", **overrides})
    with pytest.raises(ValueError, match=message):
        config_lib.load(values.to_dict())


def test_no_pickle_is_opened(exported, tmp_path):
    torch = pytest.importorskip("torch")
    (exported / "model.safetensors").unlink()
    harm = {"wte": Harm(tmp_path / "harmed")}
    torch.save(harm, exported / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"holds more than weights"):
        run("run", exported, tmp_path / "run")
    assert list(tmp_path.iterdir()) == [exported]


# --- the tokenizer beside other formats: our copy, GPT-1's two files, or a refusal ---


def test_our_own_copy_comes_back_bit_for_bit(pretrained, tmp_path):
    run("openai", pretrained, tmp_path / "out")
    ours = load_tokenizer(pretrained / "tokenizer")
    back = foreign.read_tokenizer(epath.Path(tmp_path / "out"), ours.vocab_size)
    assert back.digest == ours.digest
    copy, model = tmp_path / "out" / "gpt1_jax_tokenizer", "sentencepiece.model"
    assert (copy / model).read_bytes() == (
        pretrained / "tokenizer" / model
    ).read_bytes()


@pytest.mark.parametrize("files", [OPENAI_BPE_FILES, HUGGING_FACE_BPE_FILES], ids=str)
def test_gpt1s_two_files_are_read_under_either_name(tmp_path, files):
    pytest.importorskip("spacy")
    write_bpe_files(tmp_path, files, vocab_size=20)
    tokenizer = foreign.read_tokenizer(epath.Path(tmp_path), 20)
    assert tokenizer.kind == "gpt1"
    assert tokenizer.encode("b a\nc") == [2, 1, 19, 3]


def test_openais_folder_gets_gpt1s_two_files_from_hugging_faces(
    tmp_path, tiny_model_config
):
    pytest.importorskip("spacy")
    folder = epath.Path(tmp_path / "from")
    folder.mkdir()
    model = tiny_model_config(vocab_size=20)
    hugging_face.write_model(folder, model, drawn_params(model))
    write_bpe_files(folder, HUGGING_FACE_BPE_FILES, vocab_size=20)
    run("openai", folder, tmp_path / "to")
    for theirs, openais in zip(HUGGING_FACE_BPE_FILES, OPENAI_BPE_FILES, strict=True):
        written = (tmp_path / "to" / openais).read_bytes()
        assert written == (folder / theirs).read_bytes()


def test_openais_folder_gets_no_bpe_file_of_another_tokenizer(pretrained, tmp_path):
    run("openai", pretrained, tmp_path / "out")
    assert not any((tmp_path / "out" / name).exists() for name in OPENAI_BPE_FILES)
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "OpenAI's two BPE files: the tokenizer is 'sentencepiece'." in readme


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(
        FileNotFoundError, match=r"neither gpt1_jax_tokenizer/ nor enco"
    ):
        foreign.read_tokenizer(epath.Path(tmp_path), 20)


@pytest.mark.parametrize("rules", [{"type": "BPE", "vocab": 3}, None])
def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path, rules):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": rules}))
    with pytest.raises(UserError, match=r"tokenizer\.json (cannot|is neither)") as e:
        foreign.read_tokenizer(epath.Path(tmp_path), 20)
    assert "\n" not in str(e.value)


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


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a": 1}', b'{"a": "b"}', b"\xff"])
def test_files_that_are_no_vocabulary_are_refused(tmp_path, text):
    pytest.importorskip("spacy")
    write_bpe_files(tmp_path, HUGGING_FACE_BPE_FILES, vocab_size=20)
    (tmp_path / "vocab.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"vocab.json and merges.txt in .* are not"):
        foreign.read_tokenizer(epath.Path(tmp_path), 20)


# --- the README of an exported folder ---

MODEL = config_lib.load(load_config("paper").to_dict()).model.with_vocab_size(40478)


def test_it_says_what_it_is_where_from_and_how_to_load_it():
    origin, name = "step 1,200 of runs/a", "OpenAIGPTLMHeadModel"
    text = describe_export(MODEL, origin, "gpt1", name, ("No optimizer.",))
    assert "12 layers, 768 wide, 116,534,784 parameters; 12 heads, 512 pos" in text
    assert f"gpt1_jax {gpt1_jax.__version__} from step 1,200 of runs/a" in text
    assert 'AutoModelForCausalLM.from_pretrained("THIS_FOLDER")' in text
    assert "- No optimizer.\n" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_fine_tuned_model_is_loaded_by_its_own_class():
    name = "OpenAIGPTDoubleHeadsModel"
    text = describe_export(MODEL, "a", "gpt1", name)
    assert f"import {name}, AutoTokenizer" in text and "AutoModel" not in text
    assert "configs/convert.py" not in text  # heads are not read back


def test_shards_are_not_for_transformers():
    text = describe_export(MODEL, "a", "gpt1")
    assert "params_shapes.json" in text and "transformers" not in text
    assert "configs/convert.py:run \\\n        --config.init_from=THIS_FOLDER" in text
