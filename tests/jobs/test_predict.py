"""Labels for new text, by a fine-tuned run."""

import csv
import io
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from etils import epath
from tiny_run import job_config, listing
from tiny_tasks import read_lines, rows, write_lines

import gpt1_jax
from gpt1_jax.data.records import read_rows
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.predictor import predict_examples
from gpt1_jax.jobs import predict
from gpt1_jax.parallel import devices
from gpt1_jax.runs.checkpoint_files import saved_steps
from gpt1_jax.runs.open import open_run
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Example


@pytest.fixture
def ask(capsys):
    """Runs the job; what it printed, as rows of cells."""

    def run(folder, **overrides):
        config = job_config("predict", init_from=str(folder), **overrides)
        capsys.readouterr()
        predict.run(config, "")
        printed = capsys.readouterr()
        run.said = printed.err
        return [line.split("\t") for line in printed.out.splitlines()]

    return run


@pytest.fixture(scope="module")
def dev_sentences(finetune_base):
    """The text of the run's development split."""
    return [row["sentence"] for row in rows("sst2", 12, seed=1)]


def as_table(folder):
    """`predictions/dev.jsonl` as the job prints it, less the text."""
    return [
        [line["prediction"], *(f"{p:.4f}" for p in line["probabilities"].values())]
        for line in read_lines(folder / "predictions" / "dev.jsonl")
    ]


def test_probabilities_are_calibrated_as_the_run_scored_them(of_pairs, tmp_path):
    """In all that reads the model; its labels are what they were."""
    result = json.loads((of_pairs / "results.json").read_text())
    dev = read_lines(of_pairs / "predictions" / "dev.jsonl")
    pairs = [(row["sentence1"], row["sentence2"]) for row in rows("rte", 40, seed=1)]
    model = gpt1_jax.load(str(of_pairs))
    found = model.predict(pairs)
    assert [each["label"] for each in found] == [line["prediction"] for line in dev]
    for each, line in zip(found, dev, strict=True):
        assert each["probabilities"] == pytest.approx(line["probabilities"], abs=1e-5)
    as_trained = open_run(str(of_pairs))
    task = find_task(as_trained.config)
    examples = [Example(pair, (), None, "", "", "") for pair in pairs]
    _, shares = predict_examples(as_trained, as_trained.params, task, examples, 8)
    odds = np.log(shares[:, 1] / shares[:, 0]) / result["temperature"]
    calibrated = [each["probabilities"]["yes"] for each in found]
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), calibrated, atol=1e-5)
    assert np.abs(shares[:, 1] - calibrated).max() > 1e-3
    # Saved again, it is not divided twice.
    model.save(str(tmp_path / "copy"))
    assert gpt1_jax.load(str(tmp_path / "copy")).predict(pairs) == found


def test_a_damaged_temperature_is_refused(of_pairs, tmp_path):
    folder = shutil.copytree(of_pairs, tmp_path / "damaged")
    result = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**result, "temperature": 0.0}))
    with pytest.raises(UserError, match="a 'temperature' that is no number above"):
        gpt1_jax.load(str(folder))


def test_other_steps_than_the_best_are_not_calibrated(of_pairs, capsys):
    best = open_run(str(of_pairs)).step
    other = next(s for s in saved_steps(epath.Path(of_pairs)) if s != best)
    found = gpt1_jax.load(str(of_pairs), other).run.params["head"]
    assert f"The probabilities of step {other} are not cal" in capsys.readouterr().err
    for name, array in open_run(str(of_pairs), other).params["head"].items():
        np.testing.assert_array_equal(found[name], array)


def test_rows_of_several_labels_are_learnt(of_several_labels):
    """That is, the labels that can be told by the words; each is one of its own."""
    result = json.loads((of_several_labels / "results.json").read_text())
    assert result["dev"]["micro_f1"] > result["majority"]["micro_f1"]
    dev = read_lines(of_several_labels / "predictions" / "dev.jsonl")
    expected = [["all"], ["all", "bad"], ["all", "good"]]
    assert [line["label"] for line in dev[:3]] == expected
    model = gpt1_jax.load(str(of_several_labels))
    found = model.predict([line["text"] for line in dev])
    assert [each["label"] for each in found] == [line["prediction"] for line in dev]
    without_text = model.predict(pd.DataFrame({"sentence": [" ", None]}))
    assert without_text.drop(columns="sentence").isna().all(axis=None)


def test_lines_of_a_file_get_what_the_run_itself_predicted(
    ask, finetuned, tmp_path, dev_sentences
):
    """Blank lines are left out, and a batch of another size changes nothing.

    Nothing is left behind in the folder of the run.
    """
    path, before = tmp_path / "lines.txt", listing(finetuned)
    path.write_text("\n\n".join(dev_sentences) + "\n")
    rows = ask(finetuned, input=str(path), batch_size=5)
    assert rows[0] == ["label", "P(negative)", "P(positive)", "text"]
    assert [row[:3] for row in rows[1:]] == as_table(finetuned)
    assert [row[3] for row in rows[1:]] == dev_sentences
    assert len({tuple(row[:3]) for row in rows[1:]}) > 2
    assert listing(finetuned) == before


ADDED = ["prediction", "P(negative)", "P(positive)"]


@pytest.mark.parametrize(
    ("source", "target"),
    [(".csv", ".jsonl"), (".jsonl", ".tsv"), (".jsonl", ".parquet")],
)
def test_a_table_keeps_its_columns(
    ask, finetuned, dev_sentences, tmp_path, source, target
):
    if target == ".parquet":
        pytest.importorskip("pyarrow")
    path, output = tmp_path / f"in{source}", tmp_path / "made" / f"labels{target}"
    made = [
        {"mine": n, "sentence": s, "note": "=1"} for n, s in enumerate(dev_sentences)
    ]
    if source == ".jsonl":
        write_lines(path, made)
    else:
        pd.DataFrame(made).to_csv(path, index=False)
    assert ask(finetuned, input=str(path), output=str(output)) == [[f"Wrote {output}"]]
    written = [cells for _, cells in read_rows(output)]
    expected = read_lines(finetuned / "predictions" / "dev.jsonl")
    text = source == ".csv" or target == ".tsv"
    for row, given, other in zip(written, made, expected, strict=True):
        assert list(row) == ["mine", "sentence", "note", *ADDED]
        assert row["mine"] == (str(given["mine"]) if text else given["mine"])
        assert row["sentence"] == given["sentence"]
        assert row["note"] == ("'=1" if target == ".tsv" else "=1")
        assert row["prediction"] == other["prediction"]
        shares = [float(row[name]) for name in ADDED[1:]]
        assert shares == pytest.approx([*other["probabilities"].values()], abs=1e-6)


def test_a_column_that_a_row_lacks_is_empty_there(ask, finetuned, tmp_path):
    path, output = tmp_path / "in.jsonl", tmp_path / "out.csv"
    given = [{"sentence": "bcd"}, {"a": [3], "sentence": "efg", "b": 0.1}]
    write_lines(path, [*given, {"b": None, "sentence": "hi"}])
    ask(finetuned, input=str(path), output=str(output))
    header, *rows = csv.reader(io.StringIO(output.read_text()))
    assert header == ["sentence", "a", "b", *ADDED]
    expected = [["bcd", "", ""], ["efg", "[3]", "0.1"], ["hi", "", ""]]
    assert [row[:3] for row in rows] == expected


def test_rows_without_text_have_no_prediction(ask, finetuned, tmp_path, caplog):
    """One warning counts them and names the first."""
    path, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    cells = ["bcd", "", "efg", *[" "] * 3]
    path.write_text("sentence,more\n" + "".join(f"{each},x\n" for each in cells))
    ask(finetuned, input=str(path), output=str(output))
    rows = read_lines(output)
    assert [row["sentence"] for row in rows] == cells
    for name in ("prediction", "P(positive)"):
        assert [row[name] is None for row in rows] == [not c.strip() for c in cells]
    (message,) = caplog.messages
    assert f"no prediction: 4 of 6, the first {path}:3, {path}:5, " in message
    printed = ask(finetuned, input=str(path))
    assert [bool(row[0]) for row in printed[1:]] == [bool(c.strip()) for c in cells]
    assert [len(row) for row in printed] == [4] * 7


def test_a_file_with_labels_is_scored(ask, finetuned, dev_sentences, tmp_path):
    """Beside what is written; of labels that the model does not know, it tells."""
    dev = rows("sst2", 12, seed=1)
    given = [{"sentence": r["sentence"], "label": r["label"]} for r in dev]
    path = write_lines(tmp_path / "in.jsonl", given)
    table = ask(finetuned, input=str(path))
    scores = json.loads((finetuned / "results.json").read_text())["dev"]
    said, recall = ask.said.splitlines()[-2:]
    accuracy = scores["accuracy"]
    assert said == f"Scores of the 12 rows with labels: accuracy {accuracy:.4f}"
    (bad, wrong), (missed, good) = scores["confusion"]
    of_negative = bad, f"'negative' {bad} of {bad + wrong}"
    of_positive = good, f"'positive' {good} of {missed + good}"
    lowest, other = sorted([of_negative, of_positive])
    assert recall == f"Recall, lowest first: {lowest[1]}, {other[1]}"
    assert [row[:3] for row in table[1:]] == as_table(finetuned)
    given[0]["label"] = given[2]["label"] = "unheard of"
    given[1]["label"] = None
    write_lines(path, given)
    ask(finetuned, input=str(path))
    assert "not scored: 'unheard of' (2).\n" in ask.said
    assert "Scores of the 9 rows with labels: accuracy " in ask.said
    ask(finetuned, text=dev_sentences[0])
    assert "Scores" not in ask.said


def test_a_column_that_would_be_added_is_refused(ask, finetuned, tmp_path):
    path = write_lines(tmp_path / "in.jsonl", [{"sentence": "bcd", "prediction": 1}])
    output = tmp_path / "out.csv"
    with pytest.raises(UserError, match=r"in.* there is a column 'prediction' already"):
        ask(finetuned, input=str(path), output=str(output))
    assert not output.exists() and len(ask(finetuned, input=str(path))) == 2


def test_lines_of_text_become_json_lines_or_a_table(ask, finetuned, tmp_path):
    text, paths = "bcd aaaa\nefg", [tmp_path / f"a{s}" for s in (".jsonl", ".csv")]
    for path in paths:
        ask(finetuned, text=text, output=str(path))
    one, other = read_lines(paths[0])
    assert (one["id"], one["text"], other["id"]) == ("0", {"sentence": "bcd aaaa"}, "1")
    shares = other["probabilities"].values()
    assert sum(shares) == pytest.approx(1)
    header, *written = [line.split(",") for line in paths[1].read_text().splitlines()]
    assert header == ["id", "sentence", *ADDED]
    assert written[1] == ["1", "efg", other["prediction"], *map(str, shares)]


def test_columns_and_choices_are_separated_by_tabs(ask, choosing, of_pairs, tmp_path):
    path, choices = tmp_path / "in.txt", ("choice1", "choice2")
    for folder, made, columns, names in (
        (choosing, rows("copa", 16, 1), ("premise", "question", *choices), choices),
        (of_pairs, rows("rte", 40, 1), ("sentence1", "sentence2"), ("no", "yes")),
    ):
        lines = ("\t".join(row[column] for column in columns) for row in made)
        path.write_text("\n".join(lines))
        header, *found = ask(folder, input=str(path))
        assert header == ["label", *(f"P({name})" for name in names), "text"]
        assert [row[0] for row in found] == [row[0] for row in as_table(folder)]
        with pytest.raises(ValueError, match=f"needs {len(columns)} .*, but the line"):
            ask(folder, text="a")
    text = rows("copa", 16, 1)[0]["premise"]
    (_, row) = ask(choosing, text=f"{text}\tcause\ta\tb")
    assert row[3] == f"{text} | What was the cause of this?"


def test_texts_that_are_cut_are_counted(ask, finetuned):
    """Once, beside the table, with the most that a text may have."""
    long = "bcd aaaa " * 30
    header, *rows = ask(finetuned, text=f"bcd\n{long}\n{long}x")
    assert header[0] == "label" and len(rows) == 3 and rows[1][1:3] == rows[2][1:3]
    assert ask.said.count("2 of 3 new examples were cut to fit 40 tokens.\n") == 1
    ask(finetuned, text="bcd")
    assert "cut" not in ask.said


def test_a_batch_is_no_larger_than_its_examples(ask, finetuned, monkeypatch):
    texts = {"text": "bcd\nefg"}
    assert ask(finetuned, batch_size=10**12, **texts) == ask(finetuned, **texts)
    monkeypatch.setattr(devices, "memory_bytes", lambda: 10_000)
    with pytest.raises(UserError, match=r"config.batch_size=8 takes at least .*Lower"):
        ask(finetuned, batch_size=8, **texts)


@pytest.mark.parametrize(
    ("overrides", "content", "message"),
    [
        ({}, None, "config.text='' and config.input='': set one"),
        ({"text": "a", "input": "b"}, None, "config.text='a' and config.input='b': "),
        ({"text": " "}, None, "config.text=' ' holds no example"),
        ({"text": "a", "output": "a.xlsx"}, None, "a.xlsx ends in '.xlsx'"),
        ({"text": "a", "batch_size": 0}, None, "batch_size=0 must be positive"),
        ({"input": "a.txt"}, None, "a.txt cannot be read"),
        ({"input": "a.txt"}, "b\na\tb", "a.txt:2: SST-2 needs 1 .* the line holds 2"),
        ({"input": "a.txt"}, "fine\n\u200b", "a.txt:2: the text in .*'sentence' is em"),
        ({"input": "a.jsonl"}, '{"text": "b"}', "a.jsonl:1: .*'sentence'"),
        ({"input": "a.jsonl"}, '{"sentence": ""}', "No row of .*a.jsonl' has text"),
    ],
    ids=str,
)
def test_bad_input_is_refused(
    ask, finetuned, tmp_path, monkeypatch, overrides, content, message
):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / overrides["input"]).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ask(finetuned, **overrides)


def test_several_labels_a_row_are_predicted_and_scored(
    ask, of_several_labels, tmp_path
):
    texts = [row["sentence"] for row in rows("sst2", 12, seed=1)]
    given = [
        {"sentence": text, "label": ["", "all", "bad", "all|bad"][number % 4]}
        for number, text in enumerate(texts)
    ]
    path = write_lines(tmp_path / "in.jsonl", given)
    names, output = ["all", "bad", "good"], tmp_path / "out.jsonl"
    ask(of_several_labels, input=str(path), output=str(output))
    assert re.search(r"the 12 rows with labels: .*micro_f1 0\.\d{4}", ask.said)
    assert re.search(r"Recall, lowest first: '\w+' \d of 6, '\w+' \d of 6", ask.said)
    for row in read_lines(output):
        added = ["prediction", *(f"P({name})" for name in names)]
        assert list(row) == ["sentence", "label", *added]
        likely = [name for name in names if row[f"P({name})"] >= 0.5]
        assert row["prediction"] == likely
    write_lines(path, [{**row, "label": ""} for row in given])
    printed = ask(of_several_labels, input=str(path))
    assert "Scores" not in ask.said and len(printed) == 13


def test_escapes_do_not_reach_a_terminal_and_files_keep_them(ask, finetuned, tmp_path):
    """Nor do line ends and tabs."""
    text, target = "bcd\u2028efg\nhi\t\x1b[31maaaa", tmp_path / "labels.jsonl"
    path = str(write_lines(tmp_path / "in.jsonl", [{"sentence": text}]))
    assert ask(finetuned, input=path)[1][3] == "bcd efg hi \\x1b[31maaaa"
    ask(finetuned, input=path, output=str(target))
    assert json.loads(target.read_text())["sentence"] == text


def test_a_data_frame_gets_columns(finetuned, dev_sentences, caplog):
    """With its index and types kept, and the command's predictions."""
    texts = [dev_sentences[0], None, *dev_sentences[1:], " ", pd.NA]
    texts = pd.array(texts, dtype="string")  # whose missing values are not even a bool
    frame = pd.DataFrame({" sentence": texts, "n": range(15), "label": "unheard of"})
    frame.index = pd.Index([f"r{number}" for number in range(15)], name="row")
    before, model = frame.copy(), gpt1_jax.load(str(finetuned))
    found = model.predict(frame)
    pd.testing.assert_frame_equal(frame, before)
    pd.testing.assert_frame_equal(found[list(frame)], before)
    assert list(found) == [*frame, *ADDED]
    rows = found[found["prediction"].notna()]
    assert list(found.index.difference(rows.index)) == ["r1", "r13", "r14"]
    assert [
        [row["prediction"], *(f"{row[name]:.4f}" for name in ADDED[1:])]
        for _, row in rows.iterrows()
    ] == as_table(finetuned)
    assert found.loc["r1", ADDED].isna().all()
    (message,) = caplog.messages
    assert message.endswith("3 of 15, the first row 'r1', row 'r13', row 'r14'.")
    assert [each["label"] for each in model.predict(dev_sentences)] == list(
        rows["prediction"]
    )
    empty = model.predict(frame.iloc[:0])
    assert list(empty) == [*frame, *ADDED] and not len(empty)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["sentence", "prediction"], "DataFrame: .* column 'prediction' already"),
        (["text", "more"], "row 0: there is no column 'sentence'; the c"),
        (["sentence", " sentence"], "two columns are named 'sentence'; rename"),
    ],
)
def test_a_data_frame_that_does_not_fit_is_refused(finetuned, columns, message):
    with pytest.raises(UserError, match=message):
        gpt1_jax.load(str(finetuned)).predict(pd.DataFrame([["a", "b"]], None, columns))
