"""What tests share: eight devices, a compilation cache, a tiny model and run."""

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

# Before JAX is imported. A CPU with few cores would otherwise have too few threads
# for the collectives of eight virtual devices to meet each other in time.
os.environ.setdefault("NPROC", "16")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# For the processes that tests start as well.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax
import pytest
from tiny_run import as_flags, load_config, run_program, tiny_overrides
from tiny_tasks import finetune_config, tiny_finetune_overrides, write_task

from gpt1_jax import config as config_lib
from gpt1_jax.config import ModelConfig
from gpt1_jax.ops import products

jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config: pytest.Config) -> None:
    """Keeps compiled programs in pytest's cache folder, for quicker reruns."""
    jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
    if not hasattr(config, "cache"):  # -p no:cacheprovider
        return
    # The name of a program leaves out how `row_major` splits its argument.
    digest = hashlib.sha256(Path(products.__file__).read_bytes()).hexdigest()
    cache = config.cache.mkdir(f"jax-{digest[:8]}")
    jax.config.update("jax_compilation_cache_dir", str(cache))
    # An entry that another run is just writing is compiled again, not an error.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:Error (reading|writing) persistent compilation cache:UserWarning",
    )


@pytest.fixture(scope="session")
def tiny_model_config() -> Callable[..., ModelConfig]:
    """`tiny_model_config(**overrides)`: a model that compiles in a moment."""

    def make(**overrides) -> ModelConfig:
        values = dict(
            vocab_size=97,
            num_layers=2,
            num_heads=2,
            embed_dim=32,
            mlp_dim=128,
            max_seq_len=16,
            embed_dropout=0.1,
            attn_dropout=0.1,
            resid_dropout=0.1,
            embed_dropout_on="sum",
            attention_impl="blocked",
            softmax_rows="tokens",
            loss_chunk=0,
            dtype="float32",
            layer_loop="unrolled",
            remat=False,
        )
        return ModelConfig(**{**values, **overrides})

    return make


@pytest.fixture(scope="session")
def corpus_dir(tmp_path_factory):
    """A folder of ten texts of made-up sentences, and a cache beside it."""
    base = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(80)]
    (base / "texts").mkdir()
    for number in range(10):
        lines = (" ".join(rng.choices(words, k=12)) + "." for _ in range(60))
        (base / "texts" / f"{number}.txt").write_text("\n".join(lines))
    return base


@pytest.fixture
def tiny_config(corpus_dir):
    """A function from overrides to the frozen configuration of a tiny run."""

    def make(**overrides):
        config = load_config(**{**tiny_overrides(corpus_dir), **overrides})
        return config_lib.load(config.to_dict())

    return make


@pytest.fixture(scope="session")
def tiny(tiny_model_config) -> Callable[..., ModelConfig]:
    """`tiny(**overrides)`: a decoder of one narrow layer."""

    def make(**overrides) -> ModelConfig:
        return tiny_model_config(**{"num_layers": 1, "mlp_dim": 32, **overrides})

    return make


@pytest.fixture(scope="session")
def pretrained(corpus_dir, tmp_path_factory):
    """The folder of a tiny pre-trained run that reads 40 tokens, saved at 8 and 12."""
    from gpt1_jax.jobs import pretrain

    folder = tmp_path_factory.mktemp("pretrained") / "run"
    overrides = {**tiny_overrides(corpus_dir), "model.max_seq_len": 40}
    config = load_config(**overrides)
    pretrain.run(config_lib.load(config.to_dict()), str(folder))
    return folder


@pytest.fixture(scope="session")
def finetune_base(pretrained, corpus_dir, tmp_path_factory):
    """Overrides of a tiny fine-tuned run: SST-2 without and RTE with test labels."""
    data = tmp_path_factory.mktemp("tasks")
    write_task(data, "sst2", test=10)
    write_task(data, "rte", test=10, labelled_test=True)
    return tiny_finetune_overrides(pretrained, data, corpus_dir / "xla")


@pytest.fixture(scope="session")
def finetuned(finetune_base, tmp_path_factory):
    """The folder of a finished run on SST-2; tests that change it copy it."""
    from gpt1_jax.jobs import finetune

    folder = tmp_path_factory.mktemp("finetuned") / "run"
    finetune.run(finetune_config("sst2", finetune_base), str(folder))
    return folder


@pytest.fixture
def run_main(corpus_dir):
    """`run_program` on the tiny run, in a run folder."""

    def run(workdir, *flags, preset="quickstart", **more):
        tiny = as_flags(tiny_overrides(corpus_dir))
        config = f"--config=configs/pretrain.py:{preset}"
        return run_program(config, f"--workdir={workdir}", *tiny, *flags, **more)

    return run
