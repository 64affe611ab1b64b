"""The sections that jobs share."""

import ast
import dataclasses
import inspect
import os
from typing import Annotated, Any, ClassVar, Literal

from gpt1_jax.config.checks import (
    DEFAULT,
    MACHINE,
    NEWEST,
    ByContent,
    CacheFolder,
    DType,
    File,
    Files,
    Free,
    NotNegative,
    Positive,
    RunFolder,
    Section,
    Share,
    Step,
    TokenizerPlace,
    at_least,
    at_most,
    given,
    positive,
    require,
    within,
)
from gpt1_jax.errors import UserError

AUTO = "auto"  # a form of computation that the run chooses
_PAPER_WIDTH = 768  # sec. 4.1, "Model specifications"
RELEASED_ADAM = "released_adam"  # the only optimizer that is not optax's
_LARGEST = 2**31 - 1  # index of an array; steps are counted in int32 too

Size = Annotated[int, at_most(_LARGEST, ", as no array has a larger index")]
# `ops.dropout` rounds it to a multiple of 2**-16, and keeps nothing at 1.
DropoutRate = Annotated[
    float, within("[0, 0.99999]", ", as more would round to 1; the paper uses 0.1")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobConfig(Section):
    """The keys and defaults of every job's configuration."""

    writes_folder: ClassVar[bool] = True  # False: only a file, `output`
    # For jobs that read back the models that this job trains or makes:
    default_step: ClassVar[str] = NEWEST  # the meaning of `DEFAULT`
    adds_head: ClassVar[bool] = False  # whether it adds a head and the special tokens

    job: str  # one of the program's own, or a module outside the package
    preset: Free[str]  # names the default folder: runs/JOB/PRESET

    @property
    def default_workdir(self) -> str:
        """The folder to write to unless another is named; "" if the job writes none."""
        if not self.writes_folder:
            return ""
        return os.path.join("runs", self.job, self.preset)

    def check_workdir(self, workdir: str) -> None:
        """Refuses a folder that is named for a job that writes none."""
        require(
            self.writes_folder or not workdir,
            f"--workdir={workdir!r}, but the job {self.job} writes no folder; leave it "
            "out, and name the file to write with --config.output=FILE.",
        )

    def to_dict(self) -> dict[str, Any]:
        """The resolved configuration as plain JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class ModelOptions(Section):
    """The regularisation and computation of a model, which may differ between runs."""

    section = "model"

    embed_dropout: DropoutRate = 0.1  # on embeddings (sec. 4.1)
    attn_dropout: DropoutRate = 0.1  # on attention weights (sec. 4.1)
    resid_dropout: DropoutRate = 0.1  # on each branch of a layer (sec. 4.1)
    # Where embedding dropout acts: on the "sum" of token and position vectors; on the
    # "matrix", once per step, for lookup and softmax alike (released code); on the two
    # "lookups" separately.
    embed_dropout_on: Literal["sum", "matrix", "lookups"] = "sum"
    # The form of attention: "plain" is the formula; "blocked" skips scores hidden by
    # the causal mask; "fused" uses kernels for TPUs and GPUs, and is "blocked"
    # elsewhere. "auto": "fused" where it is faster and found right, else "blocked".
    attention_form: Free[Literal["auto", "blocked", "fused", "plain"]] = "auto"
    # The form of LayerNorm: "fused" is one GPU kernel each way with the residual sum
    # and its dropout, and "plain" elsewhere. "auto": as for attention.
    layer_norm_form: Free[Literal["auto", "fused", "plain"]] = "auto"
    # Output softmax over "tokens", or "tokens+positions" (released code).
    softmax_rows: Literal["tokens", "tokens+positions"] = "tokens"
    # Positions whose logits are computed at a time; 0: all.
    loss_chunk: NotNegative[int] = 0
    # Operands of matrix products: "float32" or "bfloat16". Parameters, softmax,
    # LayerNorm and loss are always float32.
    dtype: DType = "float32"
    # "scan" compiles faster and runs slower.
    layer_loop: Free[Literal["unrolled", "scan"]] = "unrolled"
    remat: Free[bool] = False  # recompute activations in the backward pass

    def with_sizes(self, model: "ModelSection") -> "ModelSection":
        """These options with the sizes of a model."""
        return ModelSection(**{**vars(self), **model.sizes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSection(ModelOptions):
    """The section on the model: its options and sizes."""

    # "transformer", or "lstm": the paper's baseline (sec. 5), one layer that ignores
    # num_layers, num_heads, mlp_dim, attn_dropout, attention_form, layer_norm_form,
    # layer_loop and remat.
    kind: Literal["transformer", "lstm"]
    num_layers: Size  # layers of the Transformer
    num_heads: Size  # heads of each layer, which share embed_dim
    embed_dim: Positive[Size]  # the width of hidden states and token vectors
    mlp_dim: Size  # the width inside the feed-forward layers
    lstm_units: Size  # only for the LSTM
    # Tokens that the model reads; also the number of learned positions.
    max_seq_len: Annotated[
        Size,
        at_least(2, ": a sequence needs a token to predict and one to predict it from"),
    ]

    def __post_init__(self):
        super().__post_init__()
        if self.kind == "lstm":
            positive("config.model.lstm_units", self.lstm_units)
            require(
                self.softmax_rows == "tokens",
                f"config.model.softmax_rows={self.softmax_rows!r} scores positions, "
                "and config.model.kind='lstm' has no position embeddings; use "
                "--config.model.softmax_rows=tokens.",
            )
            return
        for name in ("num_layers", "num_heads", "mlp_dim"):
            positive(f"config.model.{name}", getattr(self, name))
        multiple = -(-self.embed_dim // self.num_heads)
        require(
            self.embed_dim % self.num_heads == 0,
            f"config.model.embed_dim={self.embed_dim} must be a multiple of "
            f"config.model.num_heads={self.num_heads}; use --config.model.embed_dim="
            f"{multiple}*{self.num_heads}={multiple * self.num_heads}.",
        )

    @property
    def is_full_size(self) -> bool:
        """Whether it is as wide as the paper's model, which needs a large corpus."""
        return self.embed_dim >= _PAPER_WIDTH

    @property
    def sizes(self) -> dict[str, Any]:
        """Kind and sizes, by key; a run inherits those of the run it starts from."""
        own = inspect.get_annotations(ModelSection)  # without those of ModelOptions
        return {name: getattr(self, name) for name in own}

    @property
    def depth(self) -> int:
        """The number of layers: L of the Transformer, 1 of the LSTM."""
        return 1 if self.kind == "lstm" else self.num_layers

    @property
    def layers(self) -> str:
        """The layers in words."""
        if self.kind == "lstm":
            return f"LSTM layer of {self.lstm_units:,} units"
        return f"{self.num_layers} layer{'s' * (self.num_layers != 1)}"

    def with_vocab_size(self, vocab_size: int) -> "ModelConfig":
        """The model for a tokenizer of `vocab_size` entries."""
        return ModelConfig(**vars(self), vocab_size=vocab_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelSection):
    """A model to make: the Transformer decoder (sec. 4.1), or the LSTM (sec. 5).

    `vocab_size` is not a key of `config.model`: the tokenizer decides it.
    """

    vocab_size: int


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Section):
    """Which tokenizer turns text into ids; a run with `init_from` has its origin's."""

    section = "tokenizer"

    # "sentencepiece", trained on the corpus if path is empty; "gpt1": OpenAI's own;
    # "huggingface": any of the library `tokenizers`.
    kind: Literal["sentencepiece", "gpt1", "huggingface"] = "sentencepiece"
    # Entries of a trained one: the paper's 40,000 merges and 478 symbols (sec. 4.1).
    vocab_size: Positive[int] = 40478
    lowercase: bool = True  # as the paper's; False keeps capitals
    # A saved tokenizer; OpenAI's model/ folder; a .model file of SentencePiece; a
    # tokenizer.json, its folder or hf://ORG/NAME[@REVISION].
    path: TokenizerPlace = ""
    train_megabytes: Positive[float] = 200.0  # at most this much text trains it

    def __post_init__(self):
        super().__post_init__()
        require(
            self.kind == "sentencepiece" or bool(self.path),
            f"config.tokenizer.kind={self.kind!r} needs --config.tokenizer.path=PATH: "
            "for 'gpt1' the `model/` folder of openai/finetune-transformer-lm, for "
            "'huggingface' a tokenizer.json, its folder or hf://ORG/NAME.",
        )
        require(
            self.lowercase or self.kind != "gpt1",
            "config.tokenizer.lowercase=False: GPT-1's own tokenizer knows no "
            "capitals. Train one of your own, with --config.tokenizer.kind="
            "sentencepiece.",
        )


_TRAIN = {  # what `data.train` names, by source
    "text": "PATHS: files, folders or globs, separated by commas",
    "tfds": "NAME:SPLIT, for example lm1b:train",
    "tokens": "FILES of token ids: .bin, .npy or .ds",
}


@dataclasses.dataclass(frozen=True)
class DataConfig(Section):
    """Where the text comes from and where its token shards are kept."""

    section = "data"

    # "builtin" documentation, "text" files, "tfds", or files of "tokens".
    source: Literal["builtin", "text", "tfds", "tokens"] = "builtin"
    # Files, folders or globs, with commas between them; of tfds NAME:SPLIT.
    train: ByContent[Files] = ""
    # As `train`; empty: whole documents are held out from it.
    valid: ByContent[Files] = ""
    # The share of the bytes to hold out if `valid` is empty.
    valid_fraction: Annotated[float, within("(0, 1)")] = 0.02
    # The field or column to read from JSON, Parquet, CSV and TSV; empty: the lines of
    # JSON, CSV and TSV are text.
    text_field: str = "text"
    skip_empty: bool = False  # pass over records whose text is empty or null
    # What stands between the documents of a text file: "<|endoftext|>"; empty: a file
    # is one document.
    document_separator: str = ""
    tfds_feature: str = "text"  # the text feature of the dataset
    # Where TFDS keeps its data; empty: its own default.
    tfds_data_dir: Annotated[ByContent[File], MACHINE] = ""
    # Where token shards are kept, gs://.. for several hosts; empty:
    # $XDG_CACHE_HOME/gpt1_jax or ~/.cache/gpt1_jax.
    cache_dir: CacheFolder = ""
    # Processes that tokenise; 0: one for each core.
    num_workers: Annotated[NotNegative[int], MACHINE] = 0

    def __post_init__(self):
        super().__post_init__()
        unread = ["train", "valid"] if self.source == "builtin" else []
        unread += ["document_separator"] if self.source != "text" else []
        for name in unread:
            require(
                not getattr(self, name),
                f"config.data.{name}={getattr(self, name)!r:.80} is set, but "
                f"config.data.source={self.source!r} does not read it; leave it empty, "
                "or add --config.data.source=text.",
            )
        require(
            self.source == "builtin" or bool(self.train),
            f"config.data.source={self.source!r} needs --config.data.train="
            f"{_TRAIN.get(self.source)}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Section):
    """The optimizer, its schedule and clipping (sec. 4.1; opt.py).

    `name` is `released_adam` or the name of a function of optax, such as `lion`, or of
    optax.contrib, such as `contrib.muon`. Whether optax has it and takes the arguments
    is checked by `training.optimizer.check_optimizer`, where optax is imported.
    """

    section = "optimizer"

    # "released_adam", or any optimizer of optax: "adamw", "lion", "contrib.muon", ..
    name: Annotated[
        str, given("config.optimizer.name is empty; use released_adam.")
    ] = RELEASED_ADAM
    # Further arguments of optax's function: "momentum=0.9,nesterov=True" (sgd).
    arguments: str = ""
    learning_rate: Positive[float]  # the highest
    # b1, b2 and eps are passed to optimizers that have arguments of these names.
    b1: Share = 0.9
    b2: Share = 0.999  # see b1
    eps: Positive[float] = 1e-8  # see b1
    weight_decay: NotNegative[float] = 0.01  # only of tensors with several dimensions
    # The largest norm of all gradients together; the released code's value.
    clip_norm: Positive[float] = 1.0
    # "cosine" over all steps (released code), "cosine_after_warmup" (optax's form),
    # "linear" or "constant".
    schedule: Literal["cosine", "cosine_after_warmup", "linear", "constant"]
    warmup_steps: NotNegative[int] = 0  # updates
    warmup_fraction: Share = 0.0  # a share of all updates, instead of warmup_steps
    final_fraction: Share = 0.0  # the last rate, as a share of learning_rate

    def __post_init__(self):
        super().__post_init__()
        require(
            not (self.warmup_steps and self.warmup_fraction),
            f"config.optimizer.warmup_steps={self.warmup_steps} and "
            f"config.optimizer.warmup_fraction={self.warmup_fraction}: set one of them "
            "and leave the other at 0.",
        )
        require(
            self.schedule != "constant" or not self.final_fraction,
            f"config.optimizer.final_fraction={self.final_fraction}, but the rate of "
            "config.optimizer.schedule='constant' does not fall; leave it at 0.",
        )
        names = self.keyword_arguments
        require(
            self.name != RELEASED_ADAM or not names,
            f"config.optimizer.arguments={self.arguments!r} are for optimizers of "
            "optax; config.optimizer.name='released_adam' takes none, leave them out.",
        )
        for name in names.keys() & {field.name for field in dataclasses.fields(self)}:
            raise UserError(
                f"config.optimizer.arguments={self.arguments!r} names {name}, which "
                f"has a key; set --config.optimizer.{name} instead."
            )

    @property
    def keyword_arguments(self) -> dict[str, Any]:
        """`arguments` by name: numbers, True, False, None, tuples; words are text."""
        problem = (
            f"config.optimizer.arguments={self.arguments!r:.80} must be NAME=VALUE, "
            "separated by commas, such as momentum=0.9,nesterov=True."
        )
        try:
            call = ast.parse(f"f({self.arguments})", mode="eval").body
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                raise UserError(problem)
            require(not call.args, problem)
            found: dict[str, Any] = {}
            for each in call.keywords:
                require(each.arg not in (None, *found), problem)
                found[str(each.arg)] = (
                    each.value.id
                    if isinstance(each.value, ast.Name)
                    else ast.literal_eval(each.value)
                )
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UserError(problem) from error
        return found

    def check_num_steps(self, num_steps: int, counted: str) -> None:
        """Refuses a run that ends before it has warmed up, or has too many updates.

        Args:
          num_steps: updates in the whole run.
          counted: where their number comes from, for the message.
        """
        require(
            num_steps <= _LARGEST,
            f"The run has {num_steps:,} updates ({counted}); steps are numbered up to "
            f"{_LARGEST:,}. Train for less.",
        )
        require(
            num_steps > 0,
            f"The run has no update ({counted}); raise config.train.num_epochs, lower "
            "config.train.batch_size, or train on more.",
        )
        key = "warmup_steps" if self.warmup_steps else "warmup_fraction"
        warmup = self.warmup_steps or round(self.warmup_fraction * num_steps)
        require(
            num_steps > warmup,
            f"The run has {num_steps:,} updates ({counted}), all within "
            f"config.optimizer.{key}={getattr(self, key)}; train longer, or warm up "
            f"for less with --config.optimizer.warmup_steps={num_steps // 10}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(Section):
    """Length, batch and numerical guards of the training run."""

    section = "train"

    # Passes over the training data.
    num_epochs: Annotated[NotNegative[float], at_most(_LARGEST, ", as steps are")] = 0.0
    num_steps: NotNegative[int] = 0  # updates, instead of epochs
    batch_size: Positive[int]  # sequences or examples of an update, over all devices
    accumulation_steps: NotNegative[int] = 0  # parts of a batch; 0: the fewest that fit
    # Skipped updates in a row before the run stops.
    max_nonfinite_steps: Free[Positive[int]] = 10
    # "highest" keeps TF32 out of float32 runs.
    matmul_precision: Literal["default", "high", "highest"] = "default"
    # Where compiled programs are kept; empty: xla/ in the default of data.cache_dir.
    compilation_cache_dir: Annotated[File, MACHINE] = ""

    def __post_init__(self):
        super().__post_init__()
        require(
            (self.num_epochs > 0) != (self.num_steps > 0),
            f"config.train.num_epochs={self.num_epochs} and config.train.num_steps="
            f"{self.num_steps}: set one of them and leave the other at 0.",
        )
        require(
            self.batch_size % max(1, self.accumulation_steps) == 0,
            f"config.train.batch_size={self.batch_size} must be a multiple of "
            f"config.train.accumulation_steps={self.accumulation_steps}.",
        )

    @property
    def compilation_cache(self) -> str:
        """The folder for compiled programs: as configured, or else the default."""
        return compilation_cache(self.compilation_cache_dir)


@dataclasses.dataclass(frozen=True)
class MeshConfig(Section):
    """How the devices share the work and the state."""

    section = "mesh"

    # What to split over the devices besides the batch: "replicated" = nothing; "full" =
    # parameters and optimizer state; "auto" = "full" on several GPUs or TPUs.
    sharding: Literal["auto", "replicated", "full"] = "auto"


@dataclasses.dataclass(frozen=True)
class EvalConfig(Section):
    """Validation and the text sampled at each evaluation."""

    section = "eval"

    every_steps: Positive[int] = 1000  # updates
    batch_size: Positive[int] = 64  # sequences
    max_batches: NotNegative[int] = 0  # how many to validate on, from the first; 0: all
    # End after so many evaluations in a row without a lower loss; 0: never.
    patience: NotNegative[int] = 0
    sample_prompt: str = ""  # text to continue; empty: a new paragraph
    sample_tokens: NotNegative[int] = 64  # 0: no sample
    sample_temperature: Positive[float] = 1.0  # of the softmax to draw from
    sample_top_k: NotNegative[int] = 40  # 0: the whole vocabulary


@dataclasses.dataclass(frozen=True)
class SamplingConfig(Section):
    """How text is generated; the keys are those of transformers' GenerationConfig."""

    section = "sampling"

    max_new_tokens: Positive[int] = 20  # in each continuation
    do_sample: bool = False  # False: always the most likely token
    temperature: Positive[float] = 1.0  # below 1, likely tokens become likelier
    top_k: NotNegative[int] = 50  # draw from the k most likely tokens; 0: from all
    # Draw from the most likely tokens that together have this probability.
    top_p: Annotated[float, within("(0, 1]")] = 1.0
    # Draw from tokens at least this fraction as likely as the best.
    min_p: Annotated[float, within("[0, 1]")] = 0.0
    # Above 1: makes tokens that the text already holds less likely.
    repetition_penalty: Positive[float] = 1.0
    # Texts that end a continuation and stay in it.
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        require(
            all(self.stop_strings),
            f"config.sampling.stop_strings={self.stop_strings} holds an empty text, "
            "which every text contains.",
        )


DEFAULT_SAMPLING = SamplingConfig()  # as transformers' GenerationConfig


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Section):
    """How often a run is saved and how many saved steps are kept."""

    section = "checkpoint"

    every_steps: Positive[int] = 1000  # updates; fine-tuning also saves where it scores
    # The newest saved steps to keep.
    keep_latest: Annotated[
        int, at_least(2, ": the newest checkpoint may turn out to be damaged")
    ] = 2
    # How many more to keep: those with the best validation loss, or task metric.
    keep_best: NotNegative[int] = 1
    # Save at least this often by the clock, beside every_steps; 0: never.
    every_minutes: Annotated[
        NotNegative[float], at_most(1_000_000, "; 0 saves by steps alone")
    ] = 0.0


_at_most_for_days = at_most(1_000_000, ", which is days")


@dataclasses.dataclass(frozen=True)
class DistributedConfig(Section):
    """How long the processes of a run wait for each other, and for a stuck one."""

    section = "distributed"

    # The time for all processes to join.
    initialization_seconds: Annotated[Positive[int], _at_most_for_days, MACHINE] = 300
    # A process counts as dead after so long without a sign of life.
    heartbeat_seconds: Annotated[
        int,
        at_least(10, ", or a busy process is taken for a dead one"),
        _at_most_for_days,
        MACHINE,
    ] = 100
    # The time for all processes to leave.
    shutdown_seconds: Annotated[Positive[int], _at_most_for_days, MACHINE] = 300
    # Minutes without a step, evaluation batch or save until a process counts as stuck,
    # shows where and exits with 75; 0: never.
    stuck_minutes: Annotated[NotNegative[float], _at_most_for_days, MACHINE] = 30.0


@dataclasses.dataclass(frozen=True)
class LogConfig(Section):
    """Records on disk and the profiler."""

    section = "log"

    every_steps: Positive[int] = 50  # updates
    tensorboard: bool = True  # write event files for TensorBoard
    wandb: bool = False  # Weights & Biases, of the extra wandb
    profile_first_step: NotNegative[int] = 10  # where the trace starts, if any
    profile_steps: NotNegative[int] = 0  # how many updates to trace


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(JobConfig):
    """The keys of both training jobs, most of which `training.fit` reads."""

    # The folder of a run to start from, the origin: its weights, tokenizer and sizes
    # take the place of `tokenizer` and `model`. Empty: no origin.
    init_from: RunFolder = ""
    # The saved step: "default" (a fine-tuned run's best, any other run's newest),
    # "newest", "best" or a number.
    step: ByContent[Step] = DEFAULT
    model: ModelOptions
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: Free[MeshConfig]
    checkpoint: Free[CheckpointConfig]
    log: Free[LogConfig]
    distributed: DistributedConfig

    def __post_init__(self):
        super().__post_init__()
        if num_steps := self.train.num_steps:  # else the text or the examples decide
            counted = f"config.train.num_steps={num_steps}"
            self.optimizer.check_num_steps(num_steps, counted)


def compilation_cache(configured: str) -> str:
    """The folder of compiled programs, by default in the user's cache folder."""
    return configured or os.path.join(default_cache_dir(), "xla")


def default_cache_dir() -> str:
    """The user's cache folder: $XDG_CACHE_HOME/gpt1_jax or ~/.cache/gpt1_jax."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "gpt1_jax")
