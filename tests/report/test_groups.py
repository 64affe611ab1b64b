"""Fine-tuned runs by what they started from."""

import dataclasses

import pytest
from etils import epath
from made_up_runs import write_finished, write_json

from gpt1_jax.report import groups
from gpt1_jax.runs.past_runs import read_finished


@pytest.fixture
def run(tmp_path):
    """A function from values of the configuration to a finished run."""
    made = []

    def make(task="sst2", score=0.75, seed=0, kind="transformer", **overrides):
        folder = tmp_path / str(len(made))
        write_finished(folder, task, score, seed, **overrides)
        found = read_finished(epath.Path(folder))
        config = dataclasses.replace(
            found.config, model=dataclasses.replace(found.config.model, kind=kind)
        )
        made.append(found._replace(config=config))
        return made[-1]

    return make


def test_runs_are_grouped_by_source(run):
    small, large = run(), run(init_from="runs/pretrain/large")
    lstm = run(init_from="runs/pretrain/lstm", kind="lstm")
    found = groups.by_source([small, large, lstm, small])
    assert [len(runs) for runs in found.values()] == [2, 1, 1]
    first, _, last = found
    assert first.describe() == "From runs/pretrain/small, a Transformer at step 8"
    assert last.describe() == "From runs/pretrain/lstm, an LSTM at step 8"


def test_runs_from_scratch_stand_beside_all_that_they_compare_with(run):
    """Those with the same tokenizer and sizes, whichever folder and step they name."""

    def with_tokenizer(made, fingerprint):
        file = made.folder / "tokenizer" / "tokenizer.json"
        write_json(file, {"fingerprint": fingerprint})
        return made

    first, later = run(), run(init_from="runs/pretrain/later")
    other = run(init_from="runs/pretrain/other")
    scratch = run(init_from="runs/pretrain/small", transfer_layers="none")
    for each, fingerprint in ((first, "a"), (later, "a"), (other, "b"), (scratch, "a")):
        with_tokenizer(each, fingerprint)
    found = groups.by_source([scratch, first, later, other])
    assert list(found.values()) == [[scratch, first], [scratch, later], [other]]
    ((alone, runs),) = groups.by_source([scratch]).items()
    assert runs == [scratch]
    assert alone.describe() == (
        "From scratch, a Transformer with the tokenizer and sizes of "
        "runs/pretrain/small"
    )
    small, large = (
        made._replace(
            config=dataclasses.replace(
                made.config,
                model=dataclasses.replace(made.config.model, num_layers=layers),
            )
        )
        for made, layers in ((scratch, 2), (first, 4))
    )
    assert list(groups.by_source([small, large]).values()) == [[small], [large]]


def test_names_of_sources_are_escaped(run):
    (source,) = groups.by_source([run(init_from="<b>*a*")])
    assert source.describe().startswith(r"From \<b\>\*a\*, a")


def test_tables_hold_runs_as_in_the_paper(run):
    whole, four = run(score=0.8), run(score=0.7, transfer_layers="4")
    none = run(score=0.6, transfer_layers="none")
    others = [run(transfer_layers="2"), run(head__aux_lm_weight=0.0)]
    found = groups.as_in_paper([whole, four, none, *others])
    assert found == {
        "sst2": {"pretrained": [whole.result, four.result], "scratch": [none.result]}
    }


def test_of_several_sizes_of_data_the_largest_counts(run):
    some = run(score=0.1, data__max_train_examples=10)
    more = run(score=0.2, data__max_train_examples=20)
    all_of_it = run(score=0.3, data__max_train_examples=0)
    assert groups.as_in_paper([some, more])["sst2"]["pretrained"] == [more.result]
    found = groups.as_in_paper([some, all_of_it, more])
    assert found["sst2"]["pretrained"] == [all_of_it.result]


def test_a_table_5_holds_one_transformer_and_one_lstm(run):
    small, large = run(), run(init_from="runs/pretrain/large")
    lstm = run(init_from="runs/pretrain/lstm", kind="lstm")
    other = run("copa")  # not a column of Table 5
    tables = groups.for_table_5([small, large, lstm, other])
    assert [runs for _, runs in tables] == [[small, lstm], [large, lstm]]
    assert tables[0][0].endswith("step 8; LSTM: runs/pretrain/lstm")
    assert groups.for_table_5([small])[0][1] == [small]
    assert groups.for_table_5([lstm])[0][1] == [lstm]
    assert groups.for_table_5([other]) == []


def test_what_was_not_ablated_is_named(run):
    full, scratch = run(), run(transfer_layers="none")
    plain = run(head__aux_lm_weight=0.0)
    lstm = run(kind="lstm")
    assert groups.not_ablated([full, scratch, plain, lstm]) == []
    for left, word in (
        (full, "with the auxiliary"),
        (scratch, "without pre-training"),
        (plain, "without the auxiliary"),
        (lstm, "LSTM"),
    ):
        others = [each for each in (full, scratch, plain, lstm) if each is not left]
        (line,) = groups.not_ablated(others)
        assert word in line


def test_what_is_written_out_is_escaped(run):
    (shown,) = groups.shown([run("<i>", init_from="a|b")])
    assert shown.config.tasks == (r"\<i\>",) and shown.config.init_from == r"a\|b"
    assert list(groups.as_in_paper([run("<i>")])) == [r"\<i\>"]
