"""40 ways to break a copy of a run or an export, and how each is caught.

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


def edit_json(file, change):
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def sets(*keys, **values):
    """Changes keys of a JSON object, or of one inside it."""

    def change(held):
        for key in keys:
            held = held[key]
        held.update(values)

    return change


def in_json(name, change):
    return lambda folder, other: edit_json(folder / name, change)


def replace(target, source):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def takes(place):
    """Takes a folder of the other one in place of its own."""
    return lambda folder, other: replace(folder / place, other / place)


def swaps(one, two):
    """Swaps two folders."""

    def swap(folder, other):
        (folder / one).rename(folder / "x")
        (folder / two).rename(folder / one)
        (folder / "x").rename(folder / two)

    return swap


def removes(*places):
    def remove(folder, other):
        for place in places:
            shutil.rmtree(folder / place)

    return remove


# --- run folders of steps 0, 1, 4, 8 and 12 -------------------------------------------


def saved(run, step):
    return run / "checkpoints" / str(step)


def edit_metadata(run, step, change):
    """Changes what is saved beside a state, and renews its checksum."""
    edit_json(saved(run, step) / "metadata" / "metadata", change)
    write_manifest(epath.Path(saved(run, step)))


def read_metadata(run, step):
    return json.loads((saved(run, step) / "metadata" / "metadata").read_text())


def in_metadata(change):
    return lambda run, other: edit_metadata(run, 4, change)


def flips_bit(place):
    """Changes a bit of the largest file in a folder."""

    def flip(run, other):
        files = [path for path in (run / place).rglob("*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)

    return flip


def lowers(key, by, only_at=None):
    """Lowers a number of the records, of those of one step if it is given."""

    def lower(run, other):
        file = run / "metrics.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records:
            if key in record and only_at in (None, record["step"]):
                record[key] -= by
        file.write_text("".join(json.dumps(record) + "\n" for record in records))

    return lower


def saves(change, renew_digest=True):
    """Saves a changed state in place of that of step 4, with new checksums."""

    def save(run, other):
        place = saved(run, 4) / "state"
        with ocp.StandardCheckpointer() as checkpointer:
            state = change(jax.tree.map(np.asarray, checkpointer.restore(place)))
            shutil.rmtree(place)
            checkpointer.save(place, state)
            checkpointer.wait_until_finished()
        digest = {"params_digest": tree_digest(state["params"])} if renew_digest else {}
        edit_metadata(run, 4, sets(**digest))

    return save


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


def rename(run, other):
    saved(run, 8).rename(saved(run, 9))


def take_other_seed_as_own(run, other):
    """Takes another state, with what is saved beside one's own."""
    own, digest = read_metadata(run, 4), read_metadata(other, 4)["params_digest"]
    replace(saved(run, 4), saved(other, 4))
    (saved(run, 4) / "score.json").unlink(missing_ok=True)
    edit_metadata(run, 4, sets(**{**own, "params_digest": digest}))


def remove_from_configuration(run, other):
    shutil.rmtree(saved(run, 4))
    edit_json(run / "config.json", lambda v: v["checkpoint"]["milestone_steps"].pop(2))


def pass_for_other_seed(run, other):
    seed = json.loads((run / "config.json").read_text())["seed"]
    replace(run, other)
    edit_json(run / "config.json", sets(seed=seed))
    for place in (run / "checkpoints").iterdir():
        edit_metadata(run, place.name, sets("config", seed=seed))


MISSING = "step 4 is missing, a milestone"
OTHER_LOSS = "has validation loss .* as in metrics.jsonl"
OTHER_PARAMS = "trained again from step .*, the parameters differ"
OTHER_DIGEST = "holds parameters with digest"
TOKENS = sets("text_read", tokens=99999)
RATE = in_json("config.json", sets("optimizer", learning_rate=2e-3))
STEP_4, STEP_8 = "checkpoints/4", "checkpoints/8"

RUNS = all_caught_by(
    FILES,
    ("01 steps swapped", swaps(STEP_4, STEP_8), "step 4: holds the state of step 8"),
    ("03 a byte of the parameters", flips_bit(f"{STEP_4}/state"), "4: .* damaged"),
    (
        "04 metadata",
        in_json(f"{STEP_4}/metadata/metadata", TOKENS),
        "metadata differs from what was",
    ),
    ("06 the seed", in_json("config.json", sets(seed=7)), "config.seed is 7, saved"),
    ("07 the learning rate", RATE, "learning_rate is 0.002"),
    ("08 a byte of the tokenizer", flips_bit("tokenizer"), "The tokenizer .* damaged"),
    ("09 a validation loss", lowers("valid_loss", 0.05, only_at=8), "step 8: has vali"),
    ("11 validation losses, a little", lowers("valid_loss", 0.0009), "step 0: has"),
    ("12 another seed's state", takes(STEP_4), "config.seed is"),
    ("15 noise of 1e-7", saves(noise(1e-7), renew_digest=False), OTHER_DIGEST),
    ("19 a milestone removed", removes(STEP_4), MISSING),
    ("21 a milestone removed, configured too", remove_from_configuration, MISSING),
    ("23 a score", in_json(f"{STEP_8}/score.json", sets(value=1.0)), "1.0 bes"),
    ("26 a step renamed", rename, "step 9: holds the state of step 8"),
    ("27 the amount kept at", in_metadata(sets("milestone", amount=5)), MISSING),
)
RUNS += all_caught_by(
    LOSSES,
    ("13 another seed's state, consistent", take_other_seed_as_own, OTHER_LOSS),
    ("17 noise of 1e-2, consistent", saves(noise(1e-2)), OTHER_LOSS),
)
RUNS += all_caught_by(
    TRAINING,
    ("16 noise of 2e-4, consistent", saves(noise(2e-4)), OTHER_PARAMS, "1"),
    ("18 moments halved", saves(halve_moments, renew_digest=False), OTHER_PARAMS, "4"),
    ("25 another seed's run, consistent", pass_for_other_seed, OTHER_PARAMS, "4"),
)
RUNS += all_caught_by(
    NOTHING,
    ("10 training losses", lowers("loss", 0.5), "", "4"),
    ("14 noise of 1e-7, consistent", saves(noise(1e-7)), "", "1"),
    ("20 the last milestone removed", removes("checkpoints/12"), "", "4"),
)


# --- exports of the same steps --------------------------------------------------------

FOLDER, OTHER_FOLDER = "chck_4_steps", "chck_8_steps"


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
    return edits_table(sets("steps", "4", **values))


def consistently(break_it, name):
    """Lets the table say the new hash of a file of step 4."""

    def break_and_renew(export, other):
        break_it(export, other)
        renewed = {name: sha256(export / FOLDER / name)}
        edit_table(export, sets("steps", "4", "files", **renewed))

    return break_and_renew


def in_arrays(change):
    def edit(export, other):
        file = export / FOLDER / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return consistently(edit, "model.safetensors")


def transpose(held):
    name = "transformer.h.0.attn.c_proj.weight"
    return {**held, name: np.ascontiguousarray(held[name].T)}


def transpose_consistently(export, other):
    from gpt1_jax.interop import hugging_face

    in_arrays(transpose)(export, other)
    _, params, _ = hugging_face.read_model(epath.Path(export / FOLDER))
    edits_step(params_digest=tree_digest(params))(export, other)


def edit_tokenizer(export, other):
    file = export / FOLDER / "tokenizer.json"
    file.write_text(file.read_text("utf-8").replace('"a"', '"A"', 1), "utf-8")


def writes(*names):
    """Writes files of step 4."""

    def write(export, other):
        for name in names:
            (export / FOLDER / name).write_text("{}")

    return write


def remove_folder_and_entry(export, other):
    shutil.rmtree(export / FOLDER)
    edit_table(export, lambda table: table["steps"].pop("4"))


def leave_one_alone(export, other):
    shutil.copytree(export / FOLDER, export.parent / "lone" / OTHER_FOLDER)
    shutil.rmtree(export)
    (export.parent / "lone").rename(export)


double_heads = in_json(f"{FOLDER}/config.json", sets(n_head=4))
edit_one_table = in_json(f"{FOLDER}/trajectory.json", sets(seed=9))
add_files = writes("adapter_config.json", "generation_config.json")

EXPORTS = all_caught_by(
    FILES,
    ("e01 a tensor transposed", in_arrays(transpose), OTHER_DIGEST),
    ("e03 folders swapped", swaps(FOLDER, OTHER_FOLDER), OTHER_DIGEST),
    ("e04 heads doubled", double_heads, "config.json differs"),
    ("e06 the tokenizer", edit_tokenizer, "tokenizer.json differs"),
    ("e08 the README", writes("README.md"), "README.md differs"),
    ("e09 a folder removed", removes(FOLDER), "4.* is missing, and traj.* lists"),
    ("e11 files added", add_files, "adapter_config.json was added"),
    ("e14 another seed's folder", takes(FOLDER), OTHER_DIGEST),
    ("e15 one table", edit_one_table, "chck_.*: trajectory.json differs"),
    ("e19 one alone, under a wrong name", leave_one_alone, "8.* the state of step 4"),
)
EXPORTS += all_caught_by(
    TABLE,
    ("e02 a tensor, consistent", transpose_consistently, "another params_digest"),
    ("e07 the tokenizer", consistently(edit_tokenizer, "tokenizer.json"), "er files"),
    ("e10 a validation loss", edits_step(valid_loss=1.0), "4_steps: .* valid_loss"),
    ("e12 the seed", edits_table(sets(seed=5)), "seed 5, not 3"),
    ("e13 a folder removed, consistent", remove_folder_and_entry, "step 4 is missing"),
    ("e16 learning rates", edits_step(learning_rate_sum=0.0), "learning_rate_sum"),
    ("e17 text read", edits_step(text_read={"tokens": 1, "words": 1}), "text_read"),
)
