"""Labels for new text, by a fine-tuned run."""

import csv
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from etils import epath
from tiny_run import load_config, run_program
from tiny_tasks import finetune_config, read_lines, rows, write_lines

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.data.records import read_rows
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.predictor import predict_examples
from gpt1_jax.jobs import finetune, predict
from gpt1_jax.parallel import devices
from gpt1_jax.runs.checkpoint_files import saved_steps
from gpt1_jax.runs.open import open_run
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Example


@pytest.fixture
def ask(capsys):
    """Runs the job; what it printed, as rows of cells."""

    def run(folder, **overrides):
        values = load_config("", file="predict", init_from=str(folder), **overrides)
        config = config_lib.load(values.to_dict())
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


def test_a_text_is_labelled(ask, finetuned):
    header, row = ask(finetuned, text="bcd aaaa efg")
    assert header == ["label", "P(negative)", "P(positive)", "text"]
    assert row[0] in ("negative", "positive") and row[3] == "bcd aaaa efg"
    negative, positive = map(float, row[1:3])
    assert negative + positive == pytest.approx(1, abs=2e-4)
    assert row[0] == ("positive" if positive > negative else "negative")


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
    task, examples = find_task(as_trained.config), made_pairs(pairs)
    before = predict_examples(as_trained, as_trained.params, task, examples, 8)
    labels, shares = (np.asarray(each) for each in before)
    assert labels.tolist() == [("no", "yes").index(each["label"]) for each in found]
    odds = np.log(shares[:, 1] / shares[:, 0]) / result["temperature"]
    calibrated = [each["probabilities"]["yes"] for each in found]
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), calibrated, atol=1e-5)
    assert np.abs(shares[:, 1] - calibrated).max() > 1e-3
    # Saved again, it is not divided twice.
    model.save(str(tmp_path / "copy"))
    assert gpt1_jax.load(str(tmp_path / "copy")).predict(pairs) == found


def made_pairs(pairs):
    return [Example(pair, (), None, "", "", "") for pair in pairs]


def test_other_steps_than_the_best_are_not_calibrated(of_pairs, capsys):
    best = open_run(str(of_pairs)).step
    other = next(s for s in saved_steps(epath.Path(of_pairs)) if s != best)
    found = gpt1_jax.load(str(of_pairs), other).run.params["head"]
    assert f"The probabilities of step {other} are not cal" in capsys.readouterr().err
    for name, array in open_run(str(of_pairs), other).params["head"].items():
        np.testing.assert_array_equal(found[name], array)


def test_a_damaged_temperature_is_refused(of_pairs, tmp_path):
    folder = shutil.copytree(of_pairs, tmp_path / "run")
    result = json.loads((folder / "results.json").read_text())
    for temperature in (None, 0.0, "1.5"):
        changed = json.dumps({**result, "temperature": temperature})
        (folder / "results.json").write_text(changed)
        with pytest.raises(UserError, match="a 'temperature' that is no number above"):
            gpt1_jax.load(str(folder))


def test_rows_of_several_labels_are_learnt(of_several_labels):
    """That is, the labels that can be told by the words; each is one of its own."""
    result = json.loads((of_several_labels / "results.json").read_text())
    assert result["dev"]["micro_f1"] > result["majority"]["micro_f1"]
    assert list(result["dev"]["labels"]) == ["all", "bad", "good"]
    dev = read_lines(of_several_labels / "predictions" / "dev.jsonl")
    assert [line["label"] for line in dev[:3]] == [
        ["all"],
        ["all", "bad"],
        ["all", "good"],
    ]
    for line in dev:
        shares = line["probabilities"]
        assert line["prediction"] == [name for name in shares if shares[name] >= 0.5]
    assert all("all" in line["prediction"] for line in dev)
    texts = [line["text"] for line in dev]
    model = gpt1_jax.load(str(of_several_labels))
    found = model.predict(texts)
    assert [each["label"] for each in found] == [line["prediction"] for line in dev]
    without_text = model.predict(pd.DataFrame({"sentence": [" ", None]}))
    assert without_text.drop(columns="sentence").isna().all(axis=None)


def test_lines_of_a_file_get_what_the_run_itself_predicted(
    ask, finetuned, tmp_path, dev_sentences
):
    """Blank lines are left out, and a batch of another size changes nothing."""
    path = tmp_path / "lines.txt"
    path.write_text("\n\n".join(dev_sentences) + "\n")
    rows = ask(finetuned, input=str(path), batch_size=5)
    assert [row[:3] for row in rows[1:]] == as_table(finetuned)
    assert [row[3] for row in rows[1:]] == dev_sentences
    assert len({tuple(row[:3]) for row in rows[1:]}) > 2


@pytest.fixture
def tables(tmp_path, dev_sentences):
    """`tables(suffix)`: sentences in a file, with columns before and after them."""

    def write(suffix, **more):
        made = [
            {"mine": number - 1, "sentence": text, "note": "=1+1", **more}
            for number, text in enumerate(dev_sentences)
        ]
        path = tmp_path / f"in{suffix}"
        if suffix == ".jsonl":
            write_lines(path, made)
        else:
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(made[0]))
                writer.writeheader()
                writer.writerows(made)
        return path, made

    return write


ADDED = ["prediction", "P(negative)", "P(positive)"]


@pytest.mark.parametrize("source", [".jsonl", ".csv"])
@pytest.mark.parametrize("target", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_a_table_keeps_its_columns(ask, finetuned, tables, tmp_path, source, target):
    if target == ".parquet":
        pytest.importorskip("pyarrow")
    path, made = tables(source)
    output = tmp_path / "made" / f"labels{target}"
    assert ask(finetuned, input=str(path), output=str(output)) == [[f"Wrote {output}"]]
    written = [cells for _, cells in read_rows(output)]
    expected = read_lines(finetuned / "predictions" / "dev.jsonl")
    as_text = target in (".csv", ".tsv")
    for row, given, other in zip(written, made, expected, strict=True):
        assert list(row) == ["mine", "sentence", "note", *ADDED]
        number = given["mine"]
        assert row["mine"] == (str(number) if ".csv" in source or as_text else number)
        assert row["sentence"] == given["sentence"]
        assert row["note"] == ("'=1+1" if as_text else "=1+1")
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
    assert [row["prediction"] is None for row in rows] == [not c.strip() for c in cells]
    assert [row["P(positive)"] is None for row in rows] == [
        not each.strip() for each in cells
    ]
    (message,) = caplog.messages
    assert message == (
        f"Rows without text get no prediction: 4 of 6, the first {path}:3, {path}:5, "
        f"{path}:6."
    )
    printed = ask(finetuned, input=str(path))
    assert [bool(row[0]) for row in printed[1:]] == [bool(c.strip()) for c in cells]
    assert [len(row) for row in printed] == [4] * 7


def test_a_file_with_labels_is_scored(ask, finetuned, tables, dev_sentences, tmp_path):
    """Beside what is written; of labels that the model does not know, it tells."""
    dev = rows("sst2", 12, seed=1)
    path, _ = tables(".jsonl")
    given = [{"sentence": r["sentence"], "label": r["label"]} for r in dev]
    write_lines(path, given)
    table = ask(finetuned, input=str(path))
    accuracy = json.loads((finetuned / "results.json").read_text())["dev"]["accuracy"]
    scores = f"Scores of the 12 rows with labels: accuracy {accuracy:.4f}"
    said, recall = ask.said.splitlines()[-2:]
    assert said == scores
    confusion = json.loads((finetuned / "results.json").read_text())["dev"]["confusion"]
    parts = [
        (right / sum(row), f"{name} {right} of {sum(row)}")
        for name, row, right in zip(
            ("negative", "positive"), confusion, np.diag(confusion), strict=True
        )
    ]
    named = ", ".join(text for _, text in sorted(parts, key=lambda part: part[0]))
    assert recall == f"Recall, lowest first: {named}"
    assert [row[:3] for row in table[1:]] == as_table(finetuned)
    given[0]["label"] = given[2]["label"] = "unheard of"
    given[1]["label"] = None
    write_lines(path, given)
    output = tmp_path / "out.jsonl"
    ask(finetuned, input=str(path), output=str(output))
    assert "not scored: 'unheard of' (2).\n" in ask.said
    assert "Scores of the 9 rows with labels: accuracy " in ask.said
    assert [row["label"] for row in read_lines(output)] == [r["label"] for r in given]
    ask(finetuned, text=dev_sentences[0])
    assert "Scores" not in ask.said


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_column_that_would_be_added_is_refused(ask, finetuned, tables, suffix):
    path, _ = tables(suffix, prediction="mine")
    output = path.with_name(f"out{suffix}")
    with pytest.raises(UserError, match=r"in.* there is a column 'prediction' already"):
        ask(finetuned, input=str(path), output=str(output))
    assert not output.exists() and len(ask(finetuned, input=str(path))) == 13


def test_lines_of_text_become_json_lines_or_a_table(ask, finetuned, tmp_path):
    text, paths = "bcd aaaa\nefg", [tmp_path / f"a{s}" for s in (".jsonl", ".csv")]
    for path in paths:
        ask(finetuned, text=text, output=str(path))
    one, other = read_lines(paths[0])
    assert (one["id"], one["text"], other["id"]) == ("0", {"sentence": "bcd aaaa"}, "1")
    assert sum(one["probabilities"].values()) == pytest.approx(1)
    header, *written = [line.split(",") for line in paths[1].read_text().splitlines()]
    assert header == ["id", "sentence", *ADDED]
    assert written[1] == [
        *("1", "efg", other["prediction"]),
        *map(str, other["probabilities"].values()),
    ]


def test_the_examples_are_not_replaced(ask, finetuned, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"sentence": "abc", "mine": 1}\n')
    with pytest.raises(FileExistsError, match=r"would replace .*, which is"):
        ask(finetuned, input=str(path), output=str(path))
    assert "mine" in path.read_text()


def test_standard_input_is_read(ask, finetuned, monkeypatch, dev_sentences):
    standard_input = io.TextIOWrapper(io.BytesIO("\n".join(dev_sentences).encode()))
    monkeypatch.setattr("sys.stdin", standard_input)
    rows = ask(finetuned, input="-")
    assert [row[:3] for row in rows[1:]] == as_table(finetuned)


def test_columns_and_choices_are_separated_by_tabs(ask, choosing, tmp_path):
    made = rows("copa", 16, seed=1)
    names = ("premise", "question", "choice1", "choice2")
    path = tmp_path / "choices.txt"
    path.write_text("".join("\t".join(r[n] for n in names) + "\n" for r in made))
    found = ask(choosing, input=str(path))
    assert found[0][:3] == ["label", "P(choice1)", "P(choice2)"]
    assert [row[:3] for row in found[1:]] == as_table(choosing)
    assert found[1][3] == f"{made[0]['premise']} | What was the cause of this?"


def test_a_text_with_other_line_breaks_stays_one(ask, finetuned, tmp_path):
    path = tmp_path / "lines.jsonl"
    texts = ["bcd\u2028efg", "hi\x0cdh", "bcd\nefg\thi"]
    lines = [json.dumps({"sentence": text}, ensure_ascii=False) for text in texts]
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    rows = ask(finetuned, input=str(path))
    assert [row[3] for row in rows[1:]] == ["bcd efg", "hi dh", "bcd efg hi"]


def test_texts_that_are_cut_are_counted(ask, finetuned, choosing):
    """Once, beside the table, with the most that a text may have."""
    long = "bcd aaaa " * 30
    header, *rows = ask(finetuned, text=f"bcd\n{long}\n{long}x")
    assert header[0] == "label" and len(rows) == 3 and rows[1][1:3] == rows[2][1:3]
    for folder, text, said in (
        (finetuned, f"bcd\n{long}\n{long}x", "2 of 3 new examples were cut to fit 40"),
        (choosing, f"{long}\tcause\ta\tb", "1 of 1 new examples were cut to fit 40"),
        (finetuned, "bcd", ""),
    ):
        ask(folder, text=text)
        lines = [line for line in ask.said.splitlines() if "cut" in line]
        assert lines == [f"{said} tokens."] * bool(said)


def test_nothing_is_left_behind(ask, finetuned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in finetuned.rglob("*")}
    ask(finetuned, text="bcd")
    assert {p: p.stat().st_mtime_ns for p in finetuned.rglob("*")} == before
    assert list(tmp_path.iterdir()) == []


def test_a_batch_is_no_larger_than_its_examples(ask, finetuned, monkeypatch):
    texts = {"text": "bcd\nefg"}
    assert ask(finetuned, batch_size=10**12, **texts) == ask(finetuned, **texts)
    monkeypatch.setattr(devices, "memory_bytes", lambda: 10_000)
    with pytest.raises(UserError, match=r"config.batch_size=8 takes at least .*Lower"):
        ask(finetuned, batch_size=8, **texts)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({}, r"config.text='' and config.input='': set one"),
        ({"text": "a", "input": "b"}, r"config.text='a' and config.input='b': set one"),
        ({"text": " "}, r"config.text=' ' holds no example"),
        (
            {"text": "a\tb"},
            r"config.text:1: SST-2 needs 1 texts .* sentence, but the line holds 2",
        ),
        ({"input": "no/such.txt"}, r"no/such.txt cannot be read"),
        ({"text": "a", "output": "a.xlsx"}, r"a.xlsx ends in '.xlsx'"),
        ({"text": "a", "folder": "no/such"}, r"is not a run folder"),
        ({"text": "a", "batch_size": 0}, r"batch_size=0 must be positive"),
    ],
    ids=str,
)
def test_bad_input_is_refused(ask, finetuned, overrides, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ask(**{"folder": finetuned, **overrides})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "\n \n", r"a.txt holds no example"),
        ("a.txt", "fine\na\tb", r"a.txt:2: .* but the line holds 2"),
        ("a.jsonl", '{"sentence": "a"}\n{"text": "b"}', r"a.jsonl:2: .*'sentence'"),
        ("a.jsonl", '{"sentence": ""}', r"No row of .*a.jsonl' has text in sentence"),
        ("a.jsonl", '{"sentence": [3]}', r"a.jsonl:1: column 'sentence' holds \[3\], "),
        ("a.jsonl", "sentence", r"a.jsonl:1: this is not JSON"),
        ("a.jsonl", "[1]", r"a.jsonl, object 1 of the list: this is 1, not a JSON"),
        ("a.txt", b"fine\ncaf\xe9", r"a.txt:2: byte 0xe9 is not UTF-8"),
        ("a.txt", "fine\n\u200b", r"a.txt:2: the text in .*'sentence' is empty"),
    ],
    ids=str,
)
def test_bad_lines_are_named(ask, finetuned, tmp_path, name, content, message):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        ask(finetuned, input=str(tmp_path / name))


def test_too_few_choices_are_refused(ask, choosing):
    with pytest.raises(ValueError, match=r"COPA needs 4.*choice1, choice2, but the"):
        ask(choosing, text="a\tcause\tb")


def test_a_pretrained_run_has_no_labels(ask, pretrained):
    with pytest.raises(ValueError, match=r"job 'pretrain'; labels need a fine"):
        ask(pretrained, text="a")


def test_a_run_without_checkpoints_is_refused(ask, finetuned, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finetuned, folder)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoint"):
        ask(folder, text="a")


def test_the_program_prints_the_table_and_nothing_else(
    finetuned, dev_sentences, tmp_path
):
    code, output = run_program(
        "--config=configs/predict.py",
        f"--config.init_from={finetuned}",
        "--config.input=-",
        stdin="\n".join(dev_sentences),
        stderr=subprocess.DEVNULL,
    )
    assert code == 0, output
    rows = [line.split("\t") for line in output.splitlines()]
    assert [row[:3] for row in rows[1:]] == as_table(finetuned)


def test_a_pair_is_separated_by_a_tab(ask, finetune_base, tmp_path):
    config = finetune_config("rte", finetune_base, train__num_epochs=1.0)
    finetune.run(config, str(tmp_path / "run"))
    made = rows("rte", 12, seed=1)
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{r['sentence1']}\t{r['sentence2']}\n" for r in made))
    found = ask(tmp_path / "run", input=str(path))
    assert [row[:3] for row in found[1:]] == as_table(tmp_path / "run")
    with pytest.raises(ValueError, match=r"RTE needs 2.*sentence1, sentence2, but the"):
        ask(tmp_path / "run", text="a")


def test_several_labels_a_row_are_predicted_and_scored(ask, finetune_base, tmp_path):
    texts = [row["sentence"] for row in rows("sst2", 24, seed=1)]
    given = [
        {"text": text, "tags": ["", "a", "b", "a|b"][number % 4]}
        for number, text in enumerate(texts)
    ]
    train = write_lines(tmp_path / "train.jsonl", given)
    dev = write_lines(tmp_path / "dev.jsonl", given[4:16])
    config = finetune_config(
        "custom",
        {**finetune_base, "data.source": "files"},
        data__train=str(train),
        data__dev=str(dev),
        custom__head="multilabel",
        custom__text=("text",),
        custom__label="tags",
        train__num_epochs=1.0,
    )
    finetune.run(config, str(tmp_path / "run"))
    names = ["prediction", "P(a)", "P(b)"]
    for suffix, joined in ((".jsonl", list), (".csv", "|".join)):
        output = tmp_path / f"out{suffix}"
        ask(tmp_path / "run", input=str(dev), output=str(output))
        assert re.search(r"the 12 rows with labels: .*micro_f1 0\.\d{4}", ask.said)
        assert re.search(r"Recall, lowest first: [ab] \d of 6, [ab] \d of 6", ask.said)
        for _, row in read_rows(output):
            assert list(row) == ["text", "tags", *names]
            likely = [name for name in "ab" if float(row[f"P({name})"]) >= 0.5]
            assert row["prediction"] == joined(likely)
    write_lines(dev, [{**row, "tags": ""} for row in given])
    printed = ask(tmp_path / "run", input=str(dev))
    assert "Scores" not in ask.said and len(printed) == 25


def test_escapes_do_not_reach_a_terminal_and_files_keep_them(ask, finetuned, tmp_path):
    text, target = "bcd \x1b[31maaaa", tmp_path / "labels.jsonl"
    assert ask(finetuned, text=text)[1][3] == "bcd \\x1b[31maaaa"
    ask(finetuned, text=text, output=str(target))
    assert [line["text"]["sentence"] for line in read_lines(target)] == [text]


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


def test_a_data_frame_that_does_not_fit_is_refused(finetuned):
    model = gpt1_jax.load(str(finetuned))
    frame = pd.DataFrame({"sentence": ["bcd"], "prediction": ["mine"]})
    with pytest.raises(UserError, match=r"DataFrame: .* column 'prediction' already"):
        model.predict(frame)
    with pytest.raises(UserError, match=r"row 0: there is no column 'sentence'; the c"):
        model.predict(pd.DataFrame({"text": ["bcd"]}))
    twice = pd.DataFrame([["bcd", "efg"]], columns=["sentence", " sentence"])
    with pytest.raises(UserError, match=r"two columns are named 'sentence'; rename"):
        model.predict(twice)
