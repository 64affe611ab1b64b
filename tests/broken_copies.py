"""48 ways to break a copy of a run or an export, and how each is caught.

`files`: by the job `verify` from the folder alone. `losses` and `training`: only if
losses, or training, are computed again. `table`: only by a table that is kept
elsewhere. `nothing`: it is too small to be told from another machine's rounding, the
run might have ended there, or it is in a record that nothing is computed from. What a
table catches beside `table` is said of no other case: it catches all that changes
parameters or validation losses.
"""

import json
import shutil
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from safetensors.numpy import load_file, save_file

from gpt1_jax.data.files import sha256
from gpt1_jax.runs.checkpoint_files import write_manifest
from gpt1_jax.runs.resume import tree_digest

FILES, LOSSES, TRAINING, TABLE, NOTHING = (
    "files",
    "losses",
    "training",
    "table",
    "nothing",
)


class Broken(NamedTuple):
    """A way to break a copy, made by `break_it(copy, other)`.

    `other` is the run, or the export, of another seed.
    """

    name: str
    break_it: object
    caught_by: str
    told: str = ""  # pattern of a problem that is told then
    retrained_from: str = ""


# --- run folders of steps 0, 1, 4, 8 and 12 -------------------------------------------


def saved(run, step):
    return run / "checkpoints" / str(step)


def replace(target, source):
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)


def renew_manifest(run, step):
    write_manifest(epath.Path(saved(run, step)))


def edit_json(file, change):
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def edit_metadata(run, step, change):
    """Changes what is saved beside a state, and renews its checksum."""
    edit_json(saved(run, step) / "metadata" / "metadata", change)
    renew_manifest(run, step)


def read_metadata(run, step):
    return json.loads((saved(run, step) / "metadata" / "metadata").read_text())


def edit_metrics(run, change):
    file = run / "metrics.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        change(record)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def flip_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def largest(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def edit_state(run, step, change, renew_digest=True):
    """Saves a changed state in place of another, with new checksums."""
    place = saved(run, step) / "state"
    with ocp.StandardCheckpointer() as checkpointer:
        state = change(jax.tree.map(np.asarray, checkpointer.restore(place)))
        shutil.rmtree(place)
        checkpointer.save(place, state)
        checkpointer.wait_until_finished()
    if renew_digest:
        digest = tree_digest(state["params"])
        edit_metadata(run, step, lambda values: values.update(params_digest=digest))
    renew_manifest(run, step)


def noise(size):
    rng = np.random.default_rng(0)

    def change(state):
        def noisy(array):
            return (array + size * rng.standard_normal(array.shape)).astype(array.dtype)

        return {**state, "params": jax.tree.map(noisy, state["params"])}

    return change


def halve_moments(state):
    def half(array):
        return array * np.float32(0.5) if array.dtype == np.float32 else array

    others = {key: jax.tree.map(half, state[key]) for key in state if key != "params"}
    return {**others, "params": state["params"]}


def change_one_value(state):
    leaves, tree = jax.tree.flatten(state["params"])
    leaves = [np.array(leaf) for leaf in leaves]
    leaves[3].flat[0] += 1e-4
    return {**state, "params": jax.tree.unflatten(tree, leaves)}


def swap(run, other):
    saved(run, 4).rename(saved(run, "x"))
    saved(run, 8).rename(saved(run, 4))
    saved(run, "x").rename(saved(run, 8))


def copy_over(run, other):
    replace(saved(run, 8), saved(run, 4))


def edit_raw_metadata(run, other):
    edit_json(
        saved(run, 4) / "metadata" / "metadata",
        lambda values: values["text_read"].update(tokens=513),
    )


def edit_text_read(run, other):
    edit_metadata(run, 4, lambda values: values["text_read"].update(tokens=99999))


def edit_seed(run, other):
    edit_json(run / "config.json", lambda values: values.update(seed=7))


def edit_learning_rate(run, other):
    def change(values):
        values["optimizer"]["learning_rate"] = 2e-3

    edit_json(run / "config.json", change)


def edit_loss(run, other):
    edit_metrics(run, lambda r: r["step"] == 8 and lower(r, "valid_loss", 0.05))


def lower(record, key, by):
    if key in record:
        record[key] -= by


def edit_train_losses(run, other):
    edit_metrics(run, lambda record: lower(record, "loss", 0.5))


def edit_losses_a_little(run, other):
    edit_metrics(run, lambda record: lower(record, "valid_loss", 0.0009))


def replace_metadata(run, step, record):
    def change(values):
        values.clear()
        values.update(record)

    edit_metadata(run, step, change)


def take_other_seed(run, other):
    replace(saved(run, 4), saved(other, 4))


def take_as_own(run, step, other, other_step):
    own, its = read_metadata(run, step), read_metadata(other, other_step)
    replace(saved(run, step), saved(other, other_step))
    (saved(run, step) / "score.json").unlink()
    own["params_digest"] = its["params_digest"]
    replace_metadata(run, step, own)


def remove_from_configuration(run, other):
    shutil.rmtree(saved(run, 4))

    def change(values):
        values["checkpoint"]["milestone_steps"].remove(4)

    edit_json(run / "config.json", change)


def edit_documents(run, other):
    def change(values):
        name = next(iter(values))
        values[name] = ("1" if values[name][0] == "0" else "0") + values[name][1:]

    edit_json(run / "documents.json", change)


def edit_score(run, other):
    edit_json(saved(run, 8) / "score.json", lambda values: values.update(value=1.0))


def insert_other_seed(run, other):
    own, its = read_metadata(run, 4), read_metadata(other, 8)
    replace(saved(run, 10), saved(other, 8))
    kept = {"amount": 10, "unit": "steps"}
    forged = {**own, "milestone": kept, "data": {"next_index": 10}}
    forged["params_digest"] = its["params_digest"]
    replace_metadata(run, 10, forged)


def pass_for_other_seed(run, other):
    seed = json.loads((run / "config.json").read_text())["seed"]
    replace(run, other)
    edit_json(run / "config.json", lambda values: values.update(seed=seed))
    for place in (run / "checkpoints").iterdir():
        edit_metadata(run, place.name, lambda v: v["config"].update(seed=seed))


def edit_milestone(run, other):
    edit_metadata(run, 4, lambda values: values["milestone"].update(amount=5))


RUNS = [
    Broken("01 steps swapped", swap, FILES, "step 4: holds the state of step 8"),
    Broken("02 a step copied", copy_over, FILES, "step 8: holds the state of step 4"),
    Broken(
        "03 a byte of the parameters",
        lambda run, other: flip_byte(largest(saved(run, 4) / "state")),
        FILES,
        "step 4: .* is damaged",
    ),
    Broken("04 metadata", edit_raw_metadata, FILES, "metadata differs from what was"),
    Broken("05 text read, consistent", edit_text_read, NOTHING, retrained_from="4"),
    Broken("06 the seed", edit_seed, FILES, "config.seed is 7, saved"),
    Broken("07 the learning rate", edit_learning_rate, FILES, "learning_rate is 0.002"),
    Broken(
        "08 a byte of the tokenizer",
        lambda run, other: flip_byte(largest(run / "tokenizer")),
        FILES,
        "The tokenizer in .* is damaged",
    ),
    Broken("09 a validation loss", edit_loss, FILES, "step 8: has validation loss"),
    Broken("10 training losses", edit_train_losses, NOTHING, retrained_from="4"),
    Broken(
        "11 validation losses, a little", edit_losses_a_little, FILES, "step 0: has"
    ),
    Broken("12 another seed's state", take_other_seed, FILES, "config.seed is"),
    Broken(
        "13 another seed's state, consistent",
        lambda run, other: take_as_own(run, 4, other, 4),
        LOSSES,
        "step 4: has validation loss .* as in metrics.jsonl",
    ),
    Broken(
        "14 noise of 1e-7, consistent",
        lambda run, other: edit_state(run, 4, noise(1e-7)),
        NOTHING,
        retrained_from="1",
    ),
    Broken(
        "15 noise of 1e-7",
        lambda run, other: edit_state(run, 4, noise(1e-7), renew_digest=False),
        FILES,
        "step 4: holds parameters with digest",
    ),
    Broken(
        "16 noise of 2e-4, consistent",
        lambda run, other: edit_state(run, 4, noise(2e-4)),
        TRAINING,
        "trained again from step 1, the parameters differ",
        "1",
    ),
    Broken(
        "17 noise of 1e-2, consistent",
        lambda run, other: edit_state(run, 4, noise(1e-2)),
        LOSSES,
        "step 4: has validation loss .* as in metrics.jsonl",
    ),
    Broken(
        "18 moments halved",
        lambda run, other: edit_state(run, 4, halve_moments, renew_digest=False),
        TRAINING,
        "trained again from step 4, the parameters differ",
        "4",
    ),
    Broken(
        "19 a milestone removed",
        lambda run, other: shutil.rmtree(saved(run, 4)),
        FILES,
        "step 4 is missing, a milestone",
    ),
    Broken(
        "20 the last milestone removed",
        lambda run, other: shutil.rmtree(saved(run, 12)),
        NOTHING,
        retrained_from="4",
    ),
    Broken(
        "21 a milestone removed, from the configuration too",
        remove_from_configuration,
        FILES,
        "step 4 is missing, a milestone",
    ),
    Broken("22 the list of documents", edit_documents, NOTHING, retrained_from="4"),
    Broken(
        "23 the score of a step", edit_score, FILES, "has validation loss 1.0 beside"
    ),
    Broken(
        "24 a state put in, consistent",
        insert_other_seed,
        TRAINING,
        "trained again from step 8, the parameters differ",
        "8",
    ),
    Broken(
        "25 another seed's run, consistent",
        pass_for_other_seed,
        TRAINING,
        "trained again from step 4, the parameters differ",
        "4",
    ),
    Broken(
        "26 a step renamed",
        lambda run, other: saved(run, 8).rename(saved(run, 9)),
        FILES,
        "step 9: holds the state of step 8",
    ),
    Broken(
        "27 the amount kept at", edit_milestone, FILES, "step 4 is missing, a milestone"
    ),
    Broken(
        "28 a step copied, consistent",
        lambda run, other: take_as_own(run, 8, run, 4),
        LOSSES,
        "step 8: has validation loss .* as in metrics.jsonl",
    ),
    Broken(
        "29 one value, consistent",
        lambda run, other: edit_state(run, 12, change_one_value),
        NOTHING,
        retrained_from="8",
    ),
]


# --- exports of the same steps --------------------------------------------------------


def step_folder(export, step=4):
    return export / f"chck_{step}_steps"


def edit_table(export, change):
    """Changes the table, and all its copies with it."""
    file = export / "trajectory.json"
    edit_json(file, change)
    for place in export.iterdir():
        if place.is_dir():
            shutil.copy(file, place / "trajectory.json")


def renew_hash(export, name, **also):
    """Lets the table say the new hash of a file of step 4, and other things."""

    def change(table):
        table["steps"]["4"]["files"][name] = sha256(step_folder(export) / name)
        table["steps"]["4"].update(also)

    edit_table(export, change)


def edit_arrays(export, change):
    file = step_folder(export) / "model.safetensors"
    arrays = change(load_file(file))
    save_file(arrays, file, metadata={"format": "pt"})


def transpose(export, other):
    name = "transformer.h.0.attn.c_proj.weight"
    edit_arrays(export, lambda held: {**held, name: np.ascontiguousarray(held[name].T)})
    renew_hash(export, "model.safetensors")


def transpose_consistently(export, other):
    from gpt1_jax.interop import hugging_face

    transpose(export, other)
    _, params, _ = hugging_face.read_model(epath.Path(step_folder(export)))
    renew_hash(export, "model.safetensors", params_digest=tree_digest(params))


def double_heads(export, other):
    edit_json(step_folder(export) / "config.json", lambda v: v.update(n_head=4))


def double_heads_consistently(export, other):
    double_heads(export, other)
    renew_hash(export, "config.json")


def edit_tokenizer(export, other):
    file = step_folder(export) / "tokenizer.json"
    file.write_text(file.read_text("utf-8").replace('"a"', '"A"', 1), "utf-8")


def edit_tokenizer_consistently(export, other):
    edit_tokenizer(export, other)
    renew_hash(export, "tokenizer.json")


def add_files(export, other):
    (step_folder(export) / "adapter_config.json").write_text("{}")
    (step_folder(export) / "generation_config.json").write_text("{}")


def edit_one_table(export, other):
    edit_json(step_folder(export) / "trajectory.json", lambda t: t.update(seed=9))


def widen(export, other):
    edit_arrays(export, lambda held: {k: v.astype(np.float64) for k, v in held.items()})
    renew_hash(export, "model.safetensors")


def swap_folders(export, other):
    step_folder(export, 4).rename(export / "x")
    step_folder(export, 8).rename(step_folder(export, 4))
    (export / "x").rename(step_folder(export, 8))


def remove_folder_and_entry(export, other):
    shutil.rmtree(step_folder(export))
    edit_table(export, lambda table: table["steps"].pop("4"))


def leave_one_under_a_wrong_name(export, other):
    lone = export.parent / "lone" / "chck_8_steps"
    shutil.copytree(step_folder(export), lone)
    shutil.rmtree(export)
    lone.parent.rename(export)


def edit_step(export, **values):
    edit_table(export, lambda table: table["steps"]["4"].update(values))


EXPORTS = [
    Broken("e01 a tensor transposed", transpose, FILES, "holds parameters with digest"),
    Broken("e02 the same, consistent", transpose_consistently, TABLE, "params_digest"),
    Broken("e03 folders swapped", swap_folders, FILES, "holds parameters with digest"),
    Broken("e04 heads doubled", double_heads, FILES, "config.json differs"),
    Broken("e05 the same, consistent", double_heads_consistently, TABLE, "files"),
    Broken("e06 the tokenizer", edit_tokenizer, FILES, "tokenizer.json differs"),
    Broken("e07 the same, consistent", edit_tokenizer_consistently, TABLE, "files"),
    Broken(
        "e08 the README",
        lambda export, other: (step_folder(export) / "README.md").write_text("x"),
        FILES,
        "README.md differs",
    ),
    Broken(
        "e09 a folder removed",
        lambda export, other: shutil.rmtree(step_folder(export)),
        FILES,
        "chck_4_steps: is missing, and trajectory.json lists its files",
    ),
    Broken(
        "e10 a validation loss, consistent",
        lambda export, other: edit_step(export, valid_loss=1.0),
        TABLE,
        "chck_4_steps: has another valid_loss",
    ),
    Broken("e11 files added", add_files, FILES, "adapter_config.json was added"),
    Broken(
        "e12 the seed, consistent",
        lambda export, other: edit_table(export, lambda table: table.update(seed=5)),
        TABLE,
        "has seed 5, not 3",
    ),
    Broken(
        "e13 a folder removed, consistent",
        remove_folder_and_entry,
        TABLE,
        "step 4 is missing",
    ),
    Broken(
        "e14 another seed's folder",
        lambda export, other: replace(step_folder(export), step_folder(other)),
        FILES,
        "chck_4_steps: holds parameters with digest",
    ),
    Broken("e15 one table", edit_one_table, FILES, "chck_.*: trajectory.json differs"),
    Broken(
        "e16 the sum of learning rates, consistent",
        lambda export, other: edit_step(export, learning_rate_sum=0.0),
        TABLE,
        "another learning_rate_sum",
    ),
    Broken(
        "e17 text read, consistent",
        lambda export, other: edit_step(export, text_read={"tokens": 1, "words": 1}),
        TABLE,
        "another text_read",
    ),
    Broken("e18 float64 weights, consistent", widen, TABLE, "another files"),
    Broken(
        "e19 one folder alone, under a wrong name",
        leave_one_under_a_wrong_name,
        FILES,
        "chck_8_steps: holds the state of step 4",
    ),
]
