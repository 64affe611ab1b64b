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

FILES, LOSSES, TRAINING = "files", "losses", "training"
TABLE, NOTHING = "table", "nothing"


class Broken(NamedTuple):
    """A way to break a copy, made by `break_it(copy, other)`.

    `other` is the run, or the export, of another seed.
    """

    name: str
    break_it: object
    caught_by: str
    told: str = ""  # pattern of a problem that is told then
    retrained_from: str = ""


def all_caught_by(what, *cases):
    """Ways to break a copy, each without what catches it."""
    return [Broken(name, break_it, what, *more) for name, break_it, *more in cases]


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
    def change(state):
        rng = np.random.default_rng(0)

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


def edits(name, **values):
    """Changes keys of a JSON file."""
    return lambda run, other: edit_json(run / name, lambda held: held.update(values))


def edits_metadata(key, **values):
    """Changes keys of a section of what is saved beside the state of step 4."""
    return lambda run, other: edit_metadata(
        run, 4, lambda held: held[key].update(values)
    )


def flips_byte(place):
    """Changes a bit of the largest file in a folder."""
    return lambda run, other: flip_byte(largest(run / place))


def removes(*places):
    """Removes folders."""

    def remove(run, other):
        for place in places:
            shutil.rmtree(run / str(place))

    return remove


def lowers(key, by, only_at=None):
    """Lowers a number of the records, of those of one step if it is given."""

    def change(record):
        if key in record and only_at in (None, record["step"]):
            record[key] -= by

    return lambda run, other: edit_metrics(run, change)


def saves(change, step=4, renew_digest=True):
    """Saves a changed state in place of that of a step."""
    return lambda run, other: edit_state(run, step, change, renew_digest)


def swap(run, other):
    saved(run, 4).rename(saved(run, "x"))
    saved(run, 8).rename(saved(run, 4))
    saved(run, "x").rename(saved(run, 8))


def copy_over(run, other):
    replace(saved(run, 8), saved(run, 4))


def rename(run, other):
    saved(run, 8).rename(saved(run, 9))


def edit_raw_metadata(run, other):
    file = saved(run, 4) / "metadata" / "metadata"
    edit_json(file, lambda values: values["text_read"].update(tokens=513))


def edit_learning_rate(run, other):
    def change(values):
        values["optimizer"]["learning_rate"] = 2e-3

    edit_json(run / "config.json", change)


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


def take_other_seed_as_own(run, other):
    take_as_own(run, 4, other, 4)


def copy_as_own(run, other):
    take_as_own(run, 8, run, 4)


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


MISSING = "step 4 is missing, a milestone"
OTHER_LOSS = "has validation loss .* as in metrics.jsonl"
OTHER_PARAMS = "trained again from step .*, the parameters differ"
OTHER_DIGEST = "holds parameters with digest"

RUNS = all_caught_by(
    FILES,
    ("01 steps swapped", swap, "step 4: holds the state of step 8"),
    ("02 a step copied", copy_over, "step 8: holds the state of step 4"),
    ("03 a byte of the parameters", flips_byte("checkpoints/4/state"), "4: .* damaged"),
    ("04 metadata", edit_raw_metadata, "metadata differs from what was"),
    ("06 the seed", edits("config.json", seed=7), "config.seed is 7, saved"),
    ("07 the learning rate", edit_learning_rate, "learning_rate is 0.002"),
    ("08 a byte of the tokenizer", flips_byte("tokenizer"), "The tokenizer .* damaged"),
    ("09 a validation loss", lowers("valid_loss", 0.05, only_at=8), "step 8: has vali"),
    ("11 validation losses, a little", lowers("valid_loss", 0.0009), "step 0: has"),
    ("12 another seed's state", take_other_seed, "config.seed is"),
    ("15 noise of 1e-7", saves(noise(1e-7), renew_digest=False), OTHER_DIGEST),
    ("19 a milestone removed", removes("checkpoints/4"), MISSING),
    ("21 a milestone removed, configured too", remove_from_configuration, MISSING),
    ("23 the score of a step", edits("checkpoints/8/score.json", value=1.0), "1.0 bes"),
    ("26 a step renamed", rename, "step 9: holds the state of step 8"),
    ("27 the amount kept at", edits_metadata("milestone", amount=5), MISSING),
)
RUNS += all_caught_by(
    LOSSES,
    ("13 another seed's state, consistent", take_other_seed_as_own, OTHER_LOSS),
    ("17 noise of 1e-2, consistent", saves(noise(1e-2)), OTHER_LOSS),
    ("28 a step copied, consistent", copy_as_own, OTHER_LOSS),
)
RUNS += all_caught_by(
    TRAINING,
    ("16 noise of 2e-4, consistent", saves(noise(2e-4)), OTHER_PARAMS, "1"),
    ("18 moments halved", saves(halve_moments, renew_digest=False), OTHER_PARAMS, "4"),
    ("24 a state put in, consistent", insert_other_seed, OTHER_PARAMS, "8"),
    ("25 another seed's run, consistent", pass_for_other_seed, OTHER_PARAMS, "4"),
)
RUNS += all_caught_by(
    NOTHING,
    ("05 text read, consistent", edits_metadata("text_read", tokens=99999), "", "4"),
    ("10 training losses", lowers("loss", 0.5), "", "4"),
    ("14 noise of 1e-7, consistent", saves(noise(1e-7)), "", "1"),
    ("20 the last milestone removed", removes("checkpoints/12"), "", "4"),
    ("22 the list of documents", edit_documents, "", "4"),
    ("29 one value, consistent", saves(change_one_value, step=12), "", "8"),
)


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


def edits_table(change):
    return lambda export, other: edit_table(export, change)


def edits_step(**values):
    """Changes what the table says of step 4."""
    return edits_table(lambda table: table["steps"]["4"].update(values))


def consistently(break_it, name):
    """Lets the table say the new hash of a file of step 4."""

    def break_and_renew(export, other):
        def change(table):
            table["steps"]["4"]["files"][name] = sha256(step_folder(export) / name)

        break_it(export, other)
        edit_table(export, change)

    return break_and_renew


def edit_arrays(export, change):
    file = step_folder(export) / "model.safetensors"
    arrays = change(load_file(file))
    save_file(arrays, file, metadata={"format": "pt"})


def transpose(export, other):
    name = "transformer.h.0.attn.c_proj.weight"
    edit_arrays(export, lambda held: {**held, name: np.ascontiguousarray(held[name].T)})


def transpose_consistently(export, other):
    from gpt1_jax.interop import hugging_face

    consistently(transpose, "model.safetensors")(export, other)
    _, params, _ = hugging_face.read_model(epath.Path(step_folder(export)))
    edits_step(params_digest=tree_digest(params))(export, other)


def widen(export, other):
    edit_arrays(export, lambda held: {k: v.astype(np.float64) for k, v in held.items()})


def edit_tokenizer(export, other):
    file = step_folder(export) / "tokenizer.json"
    file.write_text(file.read_text("utf-8").replace('"a"', '"A"', 1), "utf-8")


def edit_readme(export, other):
    (step_folder(export) / "README.md").write_text("x")


def add_files(export, other):
    (step_folder(export) / "adapter_config.json").write_text("{}")
    (step_folder(export) / "generation_config.json").write_text("{}")


def swap_folders(export, other):
    step_folder(export, 4).rename(export / "x")
    step_folder(export, 8).rename(step_folder(export, 4))
    (export / "x").rename(step_folder(export, 8))


def take_other_folder(export, other):
    replace(step_folder(export), step_folder(other))


def remove_folder_and_entry(export, other):
    shutil.rmtree(step_folder(export))
    edit_table(export, lambda table: table["steps"].pop("4"))


def leave_one_alone(export, other):
    lone = export.parent / "lone" / "chck_8_steps"
    shutil.copytree(step_folder(export), lone)
    shutil.rmtree(export)
    lone.parent.rename(export)


double_heads = edits("chck_4_steps/config.json", n_head=4)
edit_one_table = edits("chck_4_steps/trajectory.json", seed=9)
transpose_and_renew = consistently(transpose, "model.safetensors")

EXPORTS = all_caught_by(
    FILES,
    ("e01 a tensor transposed", transpose_and_renew, OTHER_DIGEST),
    ("e03 folders swapped", swap_folders, OTHER_DIGEST),
    ("e04 heads doubled", double_heads, "config.json differs"),
    ("e06 the tokenizer", edit_tokenizer, "tokenizer.json differs"),
    ("e08 the README", edit_readme, "README.md differs"),
    (
        "e09 a folder removed",
        removes("chck_4_steps"),
        "4.* is missing, and traj.* lists",
    ),
    ("e11 files added", add_files, "adapter_config.json was added"),
    ("e14 another seed's folder", take_other_folder, OTHER_DIGEST),
    ("e15 one table", edit_one_table, "chck_.*: trajectory.json differs"),
    ("e19 one alone, under a wrong name", leave_one_alone, "8.* the state of step 4"),
)
EXPORTS += all_caught_by(
    TABLE,
    ("e02 a tensor, consistent", transpose_consistently, "another params_digest"),
    ("e05 heads", consistently(double_heads, "config.json"), "another files"),
    ("e07 the tokenizer", consistently(edit_tokenizer, "tokenizer.json"), "er files"),
    ("e10 a validation loss", edits_step(valid_loss=1.0), "4_steps: .* valid_loss"),
    ("e12 the seed", edits_table(lambda table: table.update(seed=5)), "seed 5, not 3"),
    ("e13 a folder removed, consistent", remove_folder_and_entry, "step 4 is missing"),
    ("e16 learning rates", edits_step(learning_rate_sum=0.0), "learning_rate_sum"),
    ("e17 text read", edits_step(text_read={"tokens": 1, "words": 1}), "text_read"),
    ("e18 float64 weights", consistently(widen, "model.safetensors"), "another files"),
)
