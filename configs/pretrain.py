"""Pre-trains a model on text (Radford et al. 2018, sec. 3.1 and 4.1).

    python -m gpt1_jax.main --config=configs/pretrain.py[:PRESET]

Presets:
  paper       the paper's recipe, 100 epochs of the corpus (the default).
  paper_1m    the same with 1,000,000 updates (the right end of Figure 2's axis), and
              milestones at 1k, 2k, 5k, 10k, .. of them.
  paper_h200, paper_h100x8, paper_v5e_16
              the paper's recipe in bfloat16, on one H200, 8 H100 and a TPU v5e slice of
              16 chips (docs/scaling.md).
  babylm      the paper's layers on 10 or 100 million words of your text, 10 epochs,
              with the milestones of the BabyLM challenge (docs/babylm.md).
  small       a 4-layer model for tens of MB of text, on a CPU or one GPU.
  suite       one member of a suite: the small model with 17 milestones from step 0 on;
              --config.seed tells the members apart (docs/suite.md).
  quickstart  a small model, trained in minutes on a laptop CPU, with five milestones.
  day         6 layers for half a day of one CPU core, or two minutes of an H100, with
              milestones to the end; chosen among four sizes (benchmarks/LOG.md).

Any value can be overridden on the command line, after --config:

    --config.data.source=text --config.data.train='books/*.txt' --config.seed=1

What is not set here has its default: see --help, or docs/configuration.md.
"""

import ml_collections

from gpt1_jax.config import default_config

ACCELERATORS = ("paper_h200", "paper_h100x8", "paper_v5e_16")
_SMALL = ("small", "suite", "quickstart", "day")
PRESETS = ("paper", "paper_1m", *ACCELERATORS, "babylm", *_SMALL)


def get_config(preset: str = "paper") -> ml_collections.ConfigDict:
    """The configuration of one pre-training run."""
    config = default_config("pretrain", preset, PRESETS)
    config.model.update(  # sec. 4.1, "Model specifications"
        kind="transformer",  # or "lstm", the paper's baseline (sec. 5)
        num_layers=12,
        num_heads=12,
        embed_dim=768,
        mlp_dim=3072,
        lstm_units=2048,  # sec. 5; only for the LSTM
        max_seq_len=512,  # tokens; also the number of learned positions
        embed_dropout=0.1,
        attn_dropout=0.1,
        resid_dropout=0.1,
    )
    config.tokenizer.vocab_size = 40478  # 40,000 merges and 478 symbols
    config.optimizer.update(  # sec. 4.1, "Model specifications"
        name="released_adam",
        learning_rate=2.5e-4,  # the maximum
        weight_decay=0.01,  # on tensors with more than one dimension
        clip_norm=1.0,  # global norm; the released code's value
        schedule="cosine",  # over all updates, as the released code has it
        warmup_steps=2000,
    )
    config.train.update(
        num_epochs=100.0,  # sec. 4.1; passes over the corpus
        batch_size=64,  # sequences over all devices, sec. 4.1
    )
    if preset == "paper_1m":
        config.train.num_epochs = 0.0
        config.train.num_steps = 1_000_000
        # 1k, 2k, 5k, 10k, .. 1M, spaced as in Figure 2 (right): ten, 14 GB.
        spaced = [first * 10**k for k in (3, 4, 5) for first in (1, 2, 5)]
        config.checkpoint.milestone_steps = (*spaced, 1_000_000)
    if preset in ACCELERATORS:
        config.model.dtype = "bfloat16"
        config.checkpoint.every_minutes = 10.0  # lost if a machine vanishes
    if preset == "babylm":
        config.tokenizer.vocab_size = 16_384
        config.train.update(num_epochs=10.0, batch_size=16)
        config.optimizer.update(warmup_steps=0, warmup_fraction=0.05)
        config.eval.max_batches = 32  # about a million tokens
        # 1M, 2M, .. 10M, 20M, .. 100M, 200M, .. 1000M.
        config.checkpoint.milestone_words = (
            *range(1_000_000, 10_000_000, 1_000_000),
            *range(10_000_000, 100_000_000, 10_000_000),
            *range(100_000_000, 1_000_000_001, 100_000_000),
        )
    if preset in _SMALL:
        config.model.update(num_layers=4, num_heads=4, embed_dim=256, mlp_dim=1024)
        config.model.lstm_units = 680  # about the paper's ratio to embed_dim
        config.train.num_epochs = 0.0
        config.optimizer.learning_rate = 1e-3
        config.tokenizer.vocab_size = 8192
    if preset in ("small", "suite", "day"):
        config.model.max_seq_len = 256
        config.train.update(num_steps=10_000, batch_size=8)
        config.optimizer.warmup_steps = 200
        # 2 % of the time, on about 131,000 tokens.
        config.eval.update(every_steps=1000, batch_size=32, max_batches=16)
        config.checkpoint.every_steps = 200
        config.log.every_steps = 50
    if preset == "suite":
        config.train.num_steps = 6500
        config.eval.max_batches = 10  # about 82,000 tokens
        # 0, 1, 2, 4, .. 4096, then every 1,000 and the end.
        doubling = [2**k for k in range(13)]
        config.checkpoint.milestone_steps = (0, *doubling, 5000, 6000, 6500)
    if preset == "day":
        config.model.num_layers = 6
        config.optimizer.warmup_steps = 2000
        config.train.num_steps = 18_500
        # 2 % of the time, the milestones' validation included.
        config.eval.update(every_steps=2000, max_batches=12)
        config.checkpoint.every_steps = 500
        doubling = [2**k for k in range(15)]
        config.checkpoint.milestone_steps = (0, *doubling, 18_500)
    if preset == "quickstart":
        config.model.max_seq_len = 128
        config.train.update(num_steps=1500, batch_size=8)
        config.optimizer.warmup_steps = 150
        config.eval.update(every_steps=300, batch_size=32)
        config.checkpoint.every_steps = 300
        config.log.every_steps = 50
        # For pages over training: five, 320 MB.
        config.checkpoint.milestone_steps = (0, 50, 150, 500, 1500)
    return config.lock()
