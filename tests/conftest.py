"""What tests share: eight devices, a compilation cache, a tiny model and run."""

import os
import random
import subprocess
import sys
from collections.abc import Callable

# Before JAX is imported. A CPU with few cores would otherwise have too few threads
# for the collectives of eight virtual devices to meet each other in time.
os.environ.setdefault("NPROC", "16")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from tiny_run import ROOT, load_config, tiny_overrides
from tiny_tasks import tiny_finetune_overrides, write_task

from gpt1_jax import config as config_lib
from gpt1_jax.config import ModelConfig

jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config: pytest.Config) -> None:
    """Keeps compiled programs in pytest's cache folder, for quicker reruns."""
    if not hasattr(config, "cache"):  # -p no:cacheprovider
        return
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
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
            dropout_impl="hash",
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
        return config_lib.from_config_dict(config.to_dict())

    return make


@pytest.fixture(scope="session")
def pretrained(corpus_dir, tmp_path_factory):
    """The folder of a tiny pre-trained run that reads 32 tokens, saved at 8 and 12."""
    from gpt1_jax.training import pretrain

    folder = tmp_path_factory.mktemp("pretrained") / "run"
    overrides = {**tiny_overrides(corpus_dir), "model.max_seq_len": 32}
    config = load_config(**overrides)
    pretrain.run(config_lib.from_config_dict(config.to_dict()), str(folder))
    return folder


@pytest.fixture(scope="session")
def finetune_base(pretrained, corpus_dir, tmp_path_factory):
    """Overrides of tiny fine-tuned runs, with made-up data of some tasks.

    SST-2 has a test split without labels, SciTail... see `tiny_tasks.write_task`.
    """
    data = tmp_path_factory.mktemp("tasks")
    write_task(data, "sst2", test=10)
    write_task(data, "rte")
    return tiny_finetune_overrides(pretrained, data, corpus_dir / "xla")


@pytest.fixture
def run_main(corpus_dir):
    """Runs `python -m gpt1_jax.main` on the tiny run in a process of its own.

    `before` is Python code run first, in the same process; `signal_at` sends a signal
    once the output holds a text.
    """

    def run(workdir, *flags, before="", env=None, signal_at=None, preset="quickstart"):
        code = f"{before}\nimport sys\nfrom gpt1_jax import main\nmain.run()"
        tiny = {f"--config.{k}={v}" for k, v in tiny_overrides(corpus_dir).items()}
        command = [
            sys.executable, "-c", code, f"--config=configs/pretrain.py:{preset}",
            f"--workdir={workdir}", *sorted(tiny), *flags,
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            if signal_at and signal_at[0] in line:
                process.send_signal(signal_at[1])
                signal_at = None
        process.wait()
        process.stdout.close()
        return process.returncode, "".join(lines)

    return run
