"""What every test shares: eight virtual devices, a compilation cache, a tiny model."""

import os
from collections.abc import Callable

# Before JAX is imported. A CPU with few cores would otherwise have too few threads
# for the collectives of eight virtual devices to meet each other in time.
os.environ.setdefault("NPROC", "16")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

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
            softmax_rows="tokens",
            dtype="float32",
            layer_loop="unrolled",
            remat=False,
        )
        return ModelConfig(**{**values, **overrides})

    return make
