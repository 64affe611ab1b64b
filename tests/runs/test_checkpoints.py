import functools
import itertools
import json
import re
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from tiny_run import listing

from gpt1_jax.config.checks import BEST, NEWEST
from gpt1_jax.config.sections import CheckpointConfig
from gpt1_jax.errors import TryAgain, UserError
from gpt1_jax.runs import checkpoints as checkpoints_module
from gpt1_jax.runs.checkpoint_files import (
    LOWEST_LOSS,
    MANIFEST_FILE,
    UNHASHED,
    Best,
    abstract_state,
    delete_checkpoint,
    read_metadata,
    saved_steps,
    write_manifest,
)
from gpt1_jax.runs.checkpoints import Checkpoints, read_params, read_state
from gpt1_jax.runs.resume import tree_digest
from gpt1_jax.training.state import TrainState

CONFIG = CheckpointConfig(every_steps=1, keep_latest=2, keep_best=1)


def state_at(step):
    return TrainState(
        step=jnp.int32(step),
        params={"w": jnp.arange(1000.0) + step, "h": {"b": jnp.ones((3, 4)) * step}},
        opt_state=({"mu": jnp.full((1000,), 0.5 * step)}, ()),
        nonfinite_steps=jnp.int32(0),
        nonfinite_in_row=jnp.int32(0),
    )


@pytest.fixture
def opened(tmp_path):
    """A function that opens the checkpoints of one run folder."""
    managers = []

    def make(best=LOWEST_LOSS):
        managers.append(Checkpoints(epath.Path(tmp_path), CONFIG, best))
        return managers[-1]

    yield make
    for manager in managers:
        manager.close()


def restore(checkpoints, check=lambda metadata: None):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(lambda: state_at(0))
    target = abstract_state(shapes, jax.tree.map(lambda _: sharding, shapes))
    return checkpoints.restore(target, check)


KEPT = {"milestone": {"amount": 1000, "unit": "words"}}


def save_all(checkpoints, losses, for_good=()):
    for step, loss in losses.items():
        metadata = KEPT if step in for_good else {"number": step}
        checkpoints.save(step, state_at(step), metadata)
        if loss is not None:
            checkpoints.add_score(step, loss)
    checkpoints.wait()


def steps_in(folder):
    """Everything that is there, whole or not."""
    return {path.name for path in folder.iterdir()}


def test_restore_gives_back_what_was_saved_and_its_metadata(opened, tmp_path):
    assert restore(opened()) is None
    save_all(opened(), {3: 1.0})
    seen = []
    restored = restore(opened(), seen.append)
    jax.tree.map(np.testing.assert_array_equal, restored, state_at(3))
    assert isinstance(restored, TrainState)
    digest = tree_digest(jax.tree.map(np.asarray, state_at(3).params))
    assert seen == [{"number": 3, "params_digest": digest}]

    def refuse(metadata):
        raise ValueError("another run")

    with pytest.raises(ValueError, match="another run"):
        restore(opened(), refuse)
    assert int(restore(opened()).step) == 3, "it was left alone"

    folder = tmp_path / "checkpoints" / "3"
    listed = json.loads((folder / MANIFEST_FILE).read_text())
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    left_out = {path.name for path in found if str(path) not in listed}
    assert left_out <= {MANIFEST_FILE, *UNHASHED}
    assert any("/d/" in name for name in listed)  # the arrays


def test_the_latest_two_and_the_best_are_kept(opened, tmp_path):
    """A new best lets the old one go, although no later save would."""
    checkpoints = opened()
    save_all(checkpoints, {1: 1.0, 2: 2.0, 3: None, 4: float("nan")})
    assert steps_in(tmp_path / "checkpoints") == {"1", "3", "4"}
    assert read_params(epath.Path(tmp_path), BEST).step == 1
    save_all(checkpoints, {5: 0.5})
    assert steps_in(tmp_path / "checkpoints") == {"4", "5"}
    assert read_params(epath.Path(tmp_path), BEST).step == 5


def largest_file(folder):
    files = (path for path in (folder / "state").rglob("*") if path.is_file())
    return max(files, key=lambda path: path.stat().st_size)


def test_damage_is_set_aside_and_the_newest_sound_state_used(opened, tmp_path, capsys):
    """Here a lost file and a flipped byte; such a step can be saved again."""
    checkpoints = opened()
    save_all(checkpoints, {1: 1.0}, for_good={1})
    save_all(checkpoints, {2: 0.5, 3: 0.7})
    largest = largest_file(tmp_path / "checkpoints/2")
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    shutil.rmtree(tmp_path / "checkpoints/3/metadata")
    (tmp_path / "checkpoints/999").touch()
    (tmp_path / "checkpoints/1000").mkdir()
    checkpoints = opened()
    assert int(restore(checkpoints).step) == 1
    said = capsys.readouterr().out
    assert re.search(r"step 2 is damaged.*differs.*moving it to ", said)
    assert re.search("step 3 is damaged.*missing", said)
    assert steps_in(tmp_path / "damaged_checkpoints") == {"2-0", "3-0", "1000-0"}
    assert saved_steps(epath.Path(tmp_path)) == [1]
    save_all(checkpoints, {2: 0.5})
    assert int(restore(opened()).step) == 2


class Killed(BaseException):
    pass


_left: list[int] = []  # changes on disk before the kill, for one deletion at a time


@sys.addaudithook
def _kill(event, arguments):
    if _left and event in ("os.rename", "os.remove", "os.rmdir"):
        _left[0] -= 1
        if _left[0] < 0:
            _left.clear()
            raise Killed


def test_a_checkpoint_killed_while_it_is_deleted_is_none(opened, tmp_path, capsys):
    """Whatever change on disk the kill came before."""
    save_all(opened(), {1: 1.0, 2: 0.5})
    folder = tmp_path / "checkpoints/2"
    shutil.copytree(folder, tmp_path / "whole")
    for moment in itertools.count():
        _left[:] = [moment]
        try:
            delete_checkpoint(epath.Path(folder))
            break
        except Killed:
            pass
        steps = [1, 2] if moment == 0 else [1]
        assert saved_steps(epath.Path(tmp_path)) == steps
        if moment in (1, 10):
            checkpoints = opened()
            assert int(restore(checkpoints).step) == 1
            save_all(checkpoints, {3: 0.4})  # by then orbax has removed what is left
            assert steps_in(tmp_path / "checkpoints") == {"1", "3"}
            shutil.rmtree(tmp_path / "checkpoints/3")
        assert not (tmp_path / "damaged_checkpoints").exists()
        for left in (tmp_path / "checkpoints").glob("2*"):
            shutil.rmtree(left)
        shutil.copytree(tmp_path / "whole", folder)
    _left.clear()
    assert moment > 10 and not folder.exists()
    assert "WARNING" not in capsys.readouterr().out


def test_a_save_on_gs_that_a_kill_cut_short_is_none(opened, tmp_path, monkeypatch):
    """There nothing can be renamed: a last file tells that all was written."""
    save_all(opened(), {1: 1.0, 2: 0.5, 3: 0.4})
    for step in (2, 3):
        (tmp_path / f"checkpoints/{step}/commit_success.txt").touch()
    (tmp_path / "checkpoints/3/commit_success.txt").unlink()
    monkeypatch.setattr("gpt1_jax.runs.checkpoint_files.is_remote", lambda path: True)
    assert saved_steps(epath.Path(tmp_path))[-1] == 2
    delete_checkpoint(epath.Path(tmp_path) / "checkpoints/2")
    assert not (tmp_path / "checkpoints/2").exists()


def test_a_damaged_score_is_read_from_the_metrics(opened, tmp_path, capsys):
    save_all(opened(), {1: 0.5, 2: 0.7, 3: 0.9})
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "valid_loss": 0.5}\n')
    for step in (1, 2):
        (tmp_path / f"checkpoints/{step}/score.json").write_text("{")
    with pytest.raises(UserError, match=r"1/score.json is damaged"):
        read_params(epath.Path(tmp_path), BEST)
    save_all(opened(), {4: 1.0})
    assert "1/score.json is damaged" in capsys.readouterr().out
    assert saved_steps(epath.Path(tmp_path)) == [1, 3, 4]
    assert read_params(epath.Path(tmp_path), BEST).step == 1


def test_files_that_orbax_cannot_read_take_one_line(opened, tmp_path):
    """Though they match their manifest, as those of a stranger may."""
    save_all(opened(), {1: 1.0})
    folder = epath.Path(tmp_path / "checkpoints/1")
    file = folder / "state/_METADATA"
    damaged = {**json.loads(file.read_text()), "tree_metadata": []}
    for wrong in ("text", {"tree_metadata": 3}, damaged):
        file.write_text(json.dumps(wrong))
        write_manifest(folder)
        with pytest.raises((UserError, OSError), match="checkpoints/1"):
            read_params(epath.Path(tmp_path))


def test_the_main_process_decides_what_is_damaged(opened, tmp_path, monkeypatch):
    """Another one takes the step that it names, once it sees it."""
    save_all(opened(), {1: 1.0, 2: 0.5})
    checkpoints = opened()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints_module, "is_main_process", lambda: False)
        patch.setattr(checkpoints_module, "gather", lambda text: ["[1]", text])
        assert int(restore(checkpoints).step) == 1
        patch.setattr(checkpoints_module, "gather", lambda text: ["[1, 7]", text])
        with pytest.raises(TryAgain, match=r"sees the steps \[1, 2\].*0 sees \[1, 7\]"):
            restore(checkpoints)


def test_a_run_of_damaged_checkpoints_refuses_to_start(opened, tmp_path, capsys):
    """Also if it is killed before it has set them aside, and started again."""
    save_all(opened(), {1: 1.0})
    (tmp_path / "checkpoints/1/manifest.json").unlink()
    _left[:] = [0]
    with pytest.raises(Killed):
        restore(opened())
    assert re.search("step 1 is damaged.*1-0", capsys.readouterr().out)
    assert not (tmp_path / "damaged_checkpoints/1-0").exists()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"All checkpoints.*damaged.*--workdir"):
            restore(opened())


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError("no such disk"), "^no such disk$"),
        (OSError(28, "No space left on device"), "is full: the checkpoint of step 2"),
        (None, r"is full: the checkpoint of step 2 needs .* MB"),
    ],
)
def test_a_save_that_dies_leaves_the_one_before(opened, monkeypatch, error, says):
    """Or one for which the disk has no room to begin with."""
    save_all(opened(), {1: 1.0})

    def die(self):
        raise error

    with monkeypatch.context() as patch:
        if error:
            patch.setattr(Checkpoints, "_complete", die)
        else:
            usage = shutil._ntuple_diskusage(10**9, 10**9, 100)
            patch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(OSError, match=says):
            save_all(opened(), {2: 0.5})
    assert int(restore(opened()).step) == 1


def test_of_equal_scores_the_earliest_is_kept_and_read(opened, tmp_path):
    accuracy = Best("valid_accuracy", highest=True)
    save_all(opened(accuracy), {1: 0.8, 2: 0.8, 3: 0.7, 4: 0.8})
    assert steps_in(tmp_path / "checkpoints") == {"1", "3", "4"}
    assert read_params(epath.Path(tmp_path), BEST).step == 1


def test_any_step_is_read_as_saved_and_nothing_is_touched(opened, tmp_path):
    """Its parameters, or its whole state."""
    folder = epath.Path(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        read_params(folder)
    save_all(opened(), {1: 1.0, 2: 0.5, 3: 2.0})
    shapes = jax.eval_shape(lambda: state_at(0))
    before = listing(tmp_path)
    for asked, step in ((NEWEST, 3), (BEST, 2), (2, 2)):
        saved = read_params(folder, asked)
        assert saved.step == step and saved.metadata["number"] == step
        jax.tree.map(np.testing.assert_array_equal, saved.params, state_at(step).params)
        state = read_state(folder, asked, shapes)
        assert isinstance(state, TrainState)
        jax.tree.map(np.testing.assert_array_equal, state, state_at(step))
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state))
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 7.*\[2, 3\]"):
        read_params(folder, 7)
    with pytest.raises(ValueError, match=r"not hold the state .*: opt_state/0/mu of"):
        wrong = shapes._replace(opt_state=({"nu": shapes.step}, ()))
        read_state(folder, 2, wrong)
    assert listing(tmp_path) == before
    largest_file(tmp_path / "checkpoints/3").unlink()
    before = listing(tmp_path)
    for read in (read_params, functools.partial(read_state, target=shapes)):
        with pytest.raises(UserError, match=r"3 is damaged.*Other steps there: \[2\]"):
            read(folder, NEWEST)
    assert read_params(folder, 2).step == 2
    assert listing(tmp_path) == before


def test_a_step_is_saved_once_and_may_be_measured_later(opened, tmp_path):
    checkpoints = opened()
    save_all(checkpoints, {1: 1.0, 2: None})
    manifest = tmp_path / "checkpoints/2/manifest.json"
    before = manifest.stat().st_mtime_ns
    save_all(checkpoints, {2: None})
    checkpoints.add_score(2, 0.5)
    checkpoints.add_score(7, 0.1)  # which is not saved
    assert manifest.stat().st_mtime_ns == before
    save_all(checkpoints, {3: 0.7, 4: 0.9})
    assert read_params(epath.Path(tmp_path), BEST).step == 2
    assert int(restore(opened()).step) == 4


def test_what_is_kept_for_good_stays_beside_the_latest_and_the_best(opened, tmp_path):
    """After a restart too, which is told neither of them nor of the best so far."""
    folder = epath.Path(tmp_path)
    save_all(opened(), {1: 5.0, 2: 1.0, 3: 4.0, 4: 3.0}, for_good={1})
    assert saved_steps(folder) == [1, 2, 3, 4]
    save_all(opened(), {5: 1.5, 6: 7.0, 7: 8.0}, for_good={5})
    assert saved_steps(folder) == [1, 2, 5, 6, 7]
    assert read_params(folder, BEST).step == 2
    assert read_metadata(folder, 1)["milestone"] == KEPT["milestone"]


def test_what_cannot_be_read_is_not_deleted_as_if_it_were_not_kept(opened, tmp_path):
    save_all(opened(), {1: 1.0, 2: 2.0}, for_good={1})
    (tmp_path / "checkpoints/1/metadata/metadata").write_text("{")
    (tmp_path / "checkpoints/1/score.json").unlink()
    save_all(opened(), {3: 0.5, 4: 0.6, 5: 0.7})
    assert saved_steps(epath.Path(tmp_path)) == [1, 3, 4, 5]


@pytest.mark.parametrize(("again", "left"), [({2}, [2, 3, 4]), (set(), [3, 4])])
def test_a_damaged_step_is_kept_again_if_wanted(opened, tmp_path, again, left):
    save_all(opened(), {1: 1.0, 2: 0.5}, for_good={2})
    (tmp_path / "checkpoints/2/manifest.json").unlink()
    checkpoints = opened()
    assert int(restore(checkpoints).step) == 1
    save_all(checkpoints, {2: 0.5, 3: 0.4, 4: 0.3}, for_good=again)
    assert saved_steps(epath.Path(tmp_path)) == left
