"""What tests share: eight devices, a compilation cache, a tiny model and run."""

import atexit
import gc
import hashlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

# Before JAX is imported. A CPU with few cores would otherwise have too few threads
# for the collectives of eight virtual devices to meet each other in time.
os.environ.setdefault("NPROC", "16")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The two workers fill two cores; PyTorch's threads would spin while they wait for one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiling takes most of the time of the tests. Like this XLA takes a fraction of it:
# it fuses and partitions as ever, but generates code without LLVM's optimisations.
# `XLA_FLAGS= pytest` compiles as in use.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
    # Unknown to later ones, which end the program over it.
    + " --xla_cpu_use_fusion_emitters=false"
    * (int(metadata.version("jaxlib").split(".")[1]) < 11),
)
# No test needs the network. Before clients of the Hub are imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
# For the processes that tests start as well.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Called last. A worker would otherwise take seconds to free what it has compiled.
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(os._exit, 0)

import hypothesis
import jax
import numpy as np
import pytest
import shared_programs
from etils import epath
from tiny_models import KIND, WAYS
from tiny_run import (
    as_flags,
    job_config,
    longer_config,
    run_program,
    tiny_overrides,
    write_texts,
)
from tiny_tasks import finetune_config, tiny_finetune_overrides, write_task

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.owner import exclusive
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.runs.checkpoint_files import Best, saved_steps, write_score

jax.config.update("jax_num_cpu_devices", 8)
# A busy machine may take long for one example.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps compiled programs in one folder, for both workers and for reruns."""
    # Shells have jobs in the background ignore Ctrl-C, and their children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("rest"):
        config.option.markexpr = ""  # slow tests too
    has_cache = hasattr(config, "cache")  # not with -p no:cacheprovider
    cache = config.cache.mkdir("jax") if has_cache else tempfile.mkdtemp(prefix="jax-")
    jax.config.update("jax_compilation_cache_dir", str(cache))
    # Noting where each operation comes from takes some 6% of the tests that train.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    shared_programs.share()
    # An entry that another run is just writing is compiled again, not an error.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:Error (reading|writing) persistent compilation cache:UserWarning",
    )


_SKIPPED = "gpt1_jax/skipped"  # in pytest's cache: the tests that the last run skipped
_skipped: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--rest`."""
    parser.addoption(
        "--rest",
        action="store_true",
        help="run the slow tests, and what the run before skipped for lack of PyTorch, "
        "for example",
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes what is skipped."""
    if report.skipped:
        _skipped.add(report.nodeid)


pytest_collectreport = pytest_runtest_logreport  # files that are skipped whole


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """With `--rest`, deselects everything else."""
    if config.getoption("rest"):
        before = set(config.cache.get(_SKIPPED, []))
        chosen, others = [], []
        for item in items:
            skipped = {item.nodeid, item.nodeid.partition("::")[0]} & before
            rest = skipped or item.get_closest_marker("slow")
            (chosen if rest else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = chosen
    # Its site takes minutes to make; the other worker should not wait for it.
    items.sort(key=lambda item: item.path.name != "test_site.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collects garbage less often: a sixth of the time of the tests that train."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keeps the names of what was skipped; collects garbage once, not ten times."""
    gc.collect()
    gc.freeze()
    if "PYTEST_XDIST_WORKER" not in os.environ and hasattr(session.config, "cache"):
        session.config.cache.set(_SKIPPED, sorted(_skipped))


@pytest.fixture
def real_figures():
    """For tests that look at the file of a figure."""


@pytest.fixture(autouse=True)
def quick_figures(request, monkeypatch):
    """Other figures are made, but not drawn into files, which takes long."""
    if "real_figures" not in request.fixturenames:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """`made_once(name, make)`: a folder that the first worker to ask makes for all.

    Tests that change it copy it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        place = shared / name
        place.mkdir(exist_ok=True)
        with exclusive(place, say=lambda waiting: None):
            if not (place / "made").exists():
                make(place / "folder")
                (place / "made").touch()
        return place / "folder"

    return folder


@pytest.fixture(scope="session")
def tiny_model_config() -> Callable[..., ModelConfig]:
    """`tiny_model_config(**overrides)`: a model that compiles in a moment."""

    sizes = dict(vocab_size=97, num_layers=2, num_heads=2, max_seq_len=16)
    sizes |= dict(embed_dim=32, mlp_dim=128)
    return lambda **overrides: ModelConfig(**{**KIND, **WAYS, **sizes, **overrides})


@pytest.fixture(scope="session")
def corpus_dir(made_once):
    """A folder of ten texts of made-up sentences, and a cache beside it."""
    return made_once("corpus", write_texts)


@pytest.fixture
def tiny_config(corpus_dir):
    """A function from overrides to the frozen configuration of a tiny run."""

    base = tiny_overrides(corpus_dir)
    return lambda **more: job_config("pretrain", "quickstart", **{**base, **more})


@pytest.fixture(scope="session")
def tiny(tiny_model_config) -> Callable[..., ModelConfig]:
    """`tiny(**overrides)`: a decoder of one narrow layer."""

    narrow = {"num_layers": 1, "mlp_dim": 32}
    return lambda **overrides: tiny_model_config(**{**narrow, **overrides})


@pytest.fixture(scope="session")
def pretrained(corpus_dir, made_once):
    """The folder of a tiny pre-trained run that reads 40 tokens, saved at 8 and 12."""
    from gpt1_jax.jobs import pretrain

    config = longer_config(corpus_dir)
    return made_once("pretrained", lambda folder: pretrain.run(config, str(folder)))


@pytest.fixture(scope="session")
def pretrained_lstm(corpus_dir, made_once):
    """The folder of a tiny pre-trained LSTM, otherwise as `pretrained`."""
    from gpt1_jax.jobs import pretrain

    config = longer_config(corpus_dir, model__kind="lstm", model__lstm_units=24)
    return made_once("lstm", lambda folder: pretrain.run(config, str(folder)))


@pytest.fixture(scope="session")
def finetune_base(pretrained, made_once):
    """Overrides of a tiny fine-tuned run: SST-2 without and RTE with test labels."""

    def make(folder):
        write_task(folder, "sst2", test=10)
        write_task(folder, "rte", test=10, labelled_test=True)

    return tiny_finetune_overrides(pretrained, made_once("tasks", make))


@pytest.fixture(scope="session")
def finetuned(finetune_base, made_once):
    """The folder of a finished run on SST-2; tests that change it copy it."""
    from gpt1_jax.jobs import finetune

    config = finetune_config("sst2", finetune_base)
    return made_once("finetuned", lambda folder: finetune.run(config, str(folder)))


@pytest.fixture
def past_its_best(finetuned, tmp_path):
    """A finished run on SST-2 whose earliest saved step has the best score."""
    folder = shutil.copytree(finetuned, tmp_path / "past_its_best")
    first, *later = saved_steps(epath.Path(folder))
    for step, score in ((first, 0.9), *((each, 0.8) for each in later)):
        checkpoint = epath.Path(folder) / "checkpoints" / str(step)
        write_score(checkpoint, Best("valid_accuracy", highest=True), score)
    return folder


@pytest.fixture(scope="session")
def run_main(corpus_dir):
    """`run_program` on the tiny run."""

    def run(*flags, preset="quickstart", **more):
        tiny = as_flags(tiny_overrides(corpus_dir))
        config = f"--config=configs/pretrain.py:{preset}"
        return run_program(config, *tiny, *flags, **more)

    return run


_WORDS = re.findall(
    r"\w+",
    """the quick brown fox jumps over a lazy dog while seven wizards mix their
black potions in boxes of jade and quartz by night she said nothing walked home and
never looked back again for every river has two banks""",
)
TRAINED_SIZE = 480  # of which 256 are bytes and 70 are characters and the newline


@pytest.fixture(scope="session")
def make_text() -> Callable[..., str]:
    """`make_text(words, name="", words_in_line=9)`: prose of known words, in lines."""

    def make(words: int, name: str = "", words_in_line: int = 9) -> str:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        chosen = np.random.default_rng(seed).choice(_WORDS, words)
        starts = range(0, words, words_in_line)
        return "\n".join(" ".join(chosen[i : i + words_in_line]) for i in starts) + "\n"

    return make


@pytest.fixture(scope="session")
def sentencepiece_tokenizer(make_text) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(make_text(4000).splitlines(), TRAINED_SIZE)


@pytest.fixture
def write(tmp_path):
    """`write(name, text)` makes a file; returns its path as a string."""

    def make(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make


@pytest.fixture
def lfs_pointer() -> bytes:
    """What stands for a file that Git LFS has not fetched."""
    oid = hashlib.sha256().hexdigest()
    version = "version https://git-lfs.github.com/spec/v1"
    return f"{version}\noid sha256:{oid}\nsize 478750579\n".encode()
