"""Looking for runs below a folder."""

from etils import epath

from gpt1_jax.runs.past_runs import find_folders


def names(root):
    return [str(path.relative_to(root)) for path in find_folders(epath.Path(root))]


def test_all_folders_are_found_in_order_but_parts_of_runs(tmp_path):
    for name in ("b/c", "a", "b/checkpoints/8", "b/predictions/all", ".hidden/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    assert names(tmp_path) == [".", "a", "b", "b/c"]


def test_links_are_followed_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert names(tmp_path) == [".", "a"]
