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
  quickstart  a small model, trained in minutes on a laptop CPU.
  day         6 layers for half a day of one CPU core, or two minutes of an H100, with
              milestones to the end; chosen among four sizes (benchmarks/LOG.md).

Any value can be overridden on the command line, after --config:

    --config.data.source=text --config.data.train='books/*.txt' --config.seed=1
"""

import ml_collections
from ml_collections import config_dict

ACCELERATORS = ("paper_h200", "paper_h100x8", "paper_v5e_16")
PRESETS = (
    "paper",
    "paper_1m",
    *ACCELERATORS,
    "babylm",
    "small",
    "suite",
    "quickstart",
    "day",
)


def get_config(preset: str = "paper") -> ml_collections.ConfigDict:
    """The configuration of one pre-training run."""
    if preset not in PRESETS:
        raise ValueError(
            f"configs/pretrain.py has no preset {preset!r}; "
            f"choose one of {', '.join(PRESETS)}."
        )
    config = config_dict.create(
        job="pretrain",
        preset=preset,  # names the default folder: runs/pretrain/PRESET
        seed=0,  # for initialisation, data order and dropout masks
        # The folder of any run, the origin: start from its weights, with its tokenizer
        # and sizes, which override config.tokenizer and config.model. Empty: no origin.
        init_from="",
        # The origin's saved step: "default" (a fine-tuned run's best, any other run's
        # newest), "newest", "best" or a number.
        step="default",
        # Take its optimizer too: moments, schedule and data continue after its step, up
        # to train.num_steps, which includes the steps already taken.
        init_optimizer=False,
        model=config_dict.create(  # sec. 4.1, "Model specifications"
            # "transformer", or "lstm": the paper's baseline (sec. 5), one layer that
            # ignores num_layers, num_heads, mlp_dim, attn_dropout, attention_form,
            # layer_norm_form, layer_loop and remat.
            kind="transformer",
            num_layers=12,
            num_heads=12,
            embed_dim=768,
            mlp_dim=3072,
            lstm_units=2048,  # sec. 5; only for the LSTM
            max_seq_len=512,  # tokens; also the number of learned positions
            embed_dropout=0.1,
            attn_dropout=0.1,
            resid_dropout=0.1,
            # Where embedding dropout acts: "sum" = on the sum of token and position
            # vectors; "matrix" = on the embedding matrix, once per step, for lookup and
            # softmax alike (released code); "lookups" = on the two vectors separately.
            embed_dropout_on="sum",
            # The form of attention: "blocked" skips scores hidden by the causal mask,
            # and keeps no [T, T] array for the backward pass; "fused" uses kernels for
            # TPUs and GPUs that never form this array, and is "blocked" elsewhere;
            # "plain" is the formula. "auto": "fused" where it is known to be faster and
            # a check at the start of the run finds it right, otherwise "blocked".
            attention_form="auto",
            # The form of LayerNorm: "fused" computes it with the residual sum and its
            # dropout in one GPU kernel each way, and is "plain" elsewhere. "auto": as
            # for attention.
            layer_norm_form="auto",
            # Output softmax over "tokens", or "tokens+positions" (released code).
            softmax_rows="tokens",
            loss_chunk=0,  # positions whose logits are computed at a time; 0: all
            # Operands of matrix products: "float32" or "bfloat16". Parameters,
            # softmax, LayerNorm and loss are always float32.
            dtype="float32",
            layer_loop="unrolled",  # or "scan": compiles faster, runs slower
            remat=False,  # recompute activations in the backward pass
        ),
        tokenizer=config_dict.create(  # ignored with init_from, which has its own
            # "sentencepiece", trained on the corpus if path is empty; "gpt1": OpenAI's
            # own; "huggingface": any of the library `tokenizers`.
            kind="sentencepiece",
            vocab_size=40478,  # entries of a trained one; files have their own number
            lowercase=True,  # as the paper's; False keeps capitals
            # A saved tokenizer; OpenAI's model/ folder; a .model file of SentencePiece;
            # a tokenizer.json, its folder or hf://ORG/NAME[@REVISION].
            path="",
            train_megabytes=200.0,  # at most this much text trains the tokenizer
        ),
        data=config_dict.create(
            # "builtin" documentation, "text" files, "tfds", or files of "tokens"
            source="builtin",
            train="",  # files, folders, globs, comma-separated; tfds: NAME:SPLIT
            valid="",  # the same; empty: hold out whole documents from train
            valid_fraction=0.02,  # of the bytes, to hold out if valid is empty
            # The field or column to read from JSON, Parquet, CSV and TSV; "": read the
            # lines of JSON, CSV and TSV as text.
            text_field="text",
            skip_empty=False,  # True: passes over records whose text is empty or null
            # What stands between the documents of a text file: "<|endoftext|>"; empty:
            # a file is one document.
            document_separator="",
            tfds_feature="text",  # the text feature of the dataset
            tfds_data_dir="",  # empty: TFDS' own default
            # gs://.. for several hosts; empty: $XDG_CACHE_HOME/gpt1_jax or
            # ~/.cache/gpt1_jax
            cache_dir="",
            num_workers=0,  # processes that tokenise; 0: one per core
        ),
        optimizer=config_dict.create(
            # Or any optimizer of optax, such as "adamw", "lion" or "contrib.muon".
            name="released_adam",
            # Further arguments of optax's function: "momentum=0.9,nesterov=True" (sgd).
            arguments="",
            learning_rate=2.5e-4,  # sec. 4.1: the maximum
            # b1, b2 and eps are passed to optimizers that have arguments of these
            # names. Optax's defaults may differ: Lion's b2 is 0.99, Adafactor's eps
            # 1e-30. The run says so when it begins.
            b1=0.9,
            b2=0.999,
            eps=1e-8,
            weight_decay=0.01,  # sec. 4.1; on tensors with more than one dimension
            clip_norm=1.0,  # global norm; the released code's value
            # "cosine" over all steps (released code), "cosine_after_warmup"
            # (optax's form), "linear", "constant"
            schedule="cosine",
            warmup_steps=2000,  # updates, sec. 4.1
            warmup_fraction=0.0,  # of all updates, instead of warmup_steps
            final_fraction=0.0,  # of learning_rate, where the schedule ends
        ),
        train=config_dict.create(
            num_epochs=100.0,  # sec. 4.1; passes over the corpus
            num_steps=0,  # updates, instead of epochs
            batch_size=64,  # sequences over all devices, sec. 4.1
            accumulation_steps=0,  # parts of a batch; 0: the fewest that fit in memory
            max_nonfinite_steps=10,  # skipped updates in a row before the run stops
            matmul_precision="default",  # "highest" keeps TF32 out of float32 runs
            compilation_cache_dir="",  # empty: xla/ in data.cache_dir's default
        ),
        mesh=config_dict.create(
            # What to split over the devices besides the batch: "replicated" = nothing;
            # "full" = parameters and optimizer state; "auto" = the fastest, "full" on
            # several GPUs or TPUs.
            sharding="auto",
        ),
        eval=config_dict.create(
            every_steps=1000,
            batch_size=64,  # sequences
            max_batches=0,  # how many to validate on, from the first; 0: all
            sample_prompt="",  # text to continue; empty: a new paragraph
            sample_tokens=64,  # 0: no sample
            sample_temperature=1.0,
            sample_top_k=40,  # 0: the whole vocabulary
        ),
        checkpoint=config_dict.create(
            every_steps=1000,
            every_minutes=0.0,  # at least this often by the clock, too; 0: never
            keep_latest=2,
            keep_best=1,  # by validation loss
            # Milestones are checkpoints kept for good, at these numbers of words of
            # training text (separated by white space), tokens or updates. Set one of
            # them: --config.checkpoint.milestone_steps=1000,2000,5000.
            milestone_words=(),
            milestone_tokens=(),
            milestone_steps=(),
        ),
        log=config_dict.create(
            every_steps=50,
            tensorboard=True,
            wandb=False,  # Weights & Biases, of the extra wandb
            profile_first_step=10,  # where the trace starts, if profile_steps > 0
            profile_steps=0,
        ),
        distributed=config_dict.create(  # with several processes; may change on resume
            initialization_seconds=300,  # for all processes to join
            heartbeat_seconds=100,  # of silence until a process counts as dead
            shutdown_seconds=300,  # for all processes to leave
            # Minutes without a step, evaluation batch or save until a process, even a
            # single one, counts as stuck, shows where and exits with 75. 0: never
            stuck_minutes=30.0,
        ),
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
    if preset in ("small", "suite", "quickstart", "day"):
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
    return config.lock()
