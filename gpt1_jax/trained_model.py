"""The trained model that `gpt1_jax.load` returns, for use in notebooks."""

import dataclasses
import functools
import itertools
import operator
import pkgutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.addresses import resolve_model
from gpt1_jax.config import ModelConfig
from gpt1_jax.config.checks import DEFAULT, check_encodable
from gpt1_jax.config.reading import DEFAULT_WORDS, ReadingConfig, WordsConfig
from gpt1_jax.config.sections import DEFAULT_SAMPLING, SamplingConfig
from gpt1_jax.data.records import check_names
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import (
    ReadingWindow,
    encode_line,
    lines_of,
    reading_windows,
    split_words,
    words_in_sentences,
)
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.calibration import calibrated
from gpt1_jax.finetuning.prediction_files import (
    check_added,
    name_predictions,
    prediction_columns,
)
from gpt1_jax.finetuning.predictor import predict_examples, task_of
from gpt1_jax.inference import decoding
from gpt1_jax.inference.features import Reader
from gpt1_jax.inference.forward import Forward, forward_texts, sum_over_tokens
from gpt1_jax.inference.generation import Generator, prompt_ids
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.inference.surprisal import score_words
from gpt1_jax.interop.run_folder import save_params
from gpt1_jax.model import interventions
from gpt1_jax.model.costs import describe_model
from gpt1_jax.model.interventions import Edit
from gpt1_jax.model.language_model import Params
from gpt1_jax.ops.settings import own_settings
from gpt1_jax.runs.open import TrainedRun, open_run
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.tasks.examples import check_new_examples
from gpt1_jax.tasks.task import Task

if TYPE_CHECKING:
    import pandas as pd

_STATES = {"with_logits": False, "few_programs": True}
# Imported by name, so that the study can be left out.
_TRAINING_TEXT = "gpt1_jax.studies.batches.training_text:TrainingText"

Config = TypeVar("Config", SamplingConfig, WordsConfig)


class TrainedModel:
    """The language model of a run.

    Its methods read its attributes on every call, so assigning other parameters or
    another configuration changes the answers of all of them.

    Args:
      run: the run, opened at a step.

    Attributes:
      run: the opened run.
      config: the language model's configuration.
      tokenizer: converts text to ids and back.
      params: the language model's parameters, float32; `gpt1_jax.model.language_model`
        has the pure functions that take them.
    """

    def __init__(self, run: TrainedRun):
        self.run = run
        self.config: ModelConfig = run.model
        self.tokenizer: Tokenizer = run.tokenizer
        self.params: Params = jax.tree.map(jnp.asarray, run.language_model)
        self._prepared_from: list[Any] = []

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.run.folder}, step {self.run.step:,}: "
            f"{describe_model(self.config)}>"
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a text, or of a newline if it is empty.

        Raises:
          UserError: if it is not a `str`, or cannot be encoded as UTF-8.
        """
        return prompt_ids(self.tokenizer, _as_text("text", text))

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text, each as a string."""
        return [self.tokenizer.decode([i]) for i in self.encode(text)]

    @own_settings()
    def forward(
        self,
        texts: str | Sequence[str],
        record: Collection[str] = (),
        edits: Mapping[str, Edit] | None = None,
    ) -> Forward:
        """Runs the model with some of its activations recorded or edited.

        Args:
          texts: a text; or a list or tuple of texts, which are computed together.
          record: names of activations, such as "h_3/attn/probs" or "h_*/out".
          edits: for some names a function that returns what takes the activation's
            place, as `gpt1_jax.model.interventions` says and makes them. There is a
            program for each length of the longest text, and none for other values of
            the edits that are made there.

        Raises:
          UserError: if there is no such activation, an edit does not fit, or a text is
            longer than the context.
        """
        found = self._forward(texts, record, edits)
        return found.of_first() if isinstance(texts, str) else found

    def _forward(self, texts: Any, *how: Any, **more: Any) -> Forward:
        """The `Forward` of all texts; see `forward_texts`."""
        by_name = _by_name(texts)
        for name, text in by_name.items():
            check_encodable(text, name)
        return forward_texts(
            self.config, self.params, self.tokenizer, by_name, *how, **more
        )

    @own_settings()
    def mean_activations(
        self, texts: Iterable[str], record: Collection[str], batch_size: int = 16
    ) -> dict[str, np.ndarray]:
        """Means of activations over all tokens of a corpus, for mean ablation.

        Args:
          texts: one or more, each within the context.
          record: names of activations [N, T, ..], as for `forward`.
          batch_size: texts computed together.

        Returns:
          For each full name the mean [..], float32.

        Raises:
          UserError: as `forward`; or if an activation has no mean over tokens.
        """
        remaining = iter([texts] if isinstance(texts, str) else texts)
        total, sums = 0, dict[str, Any]()
        while batch := list(itertools.islice(remaining, batch_size)):
            found = self._forward(batch, record, **_STATES)
            count, added = sum_over_tokens(found)
            total += count
            sums = {name: sums.get(name, 0) + each for name, each in added.items()}
        if not total:
            raise UserError("There is no text; pass one or more.")
        return {n: (each / total).astype(np.float32) for n, each in sums.items()}

    @own_settings()
    def logits(self, text: str) -> np.ndarray:
        """The next-token logits after each token of a text: [T, V] float32.

        Raises:
          UserError: if the text is longer than the context.
        """
        text = _as_text("text", text)
        return self._forward(text, (), few_programs=True).logits[0]

    def next_tokens(self, text: str, k: int = 10) -> list[tuple[str, float]]:
        """The k most likely next tokens as text, with their probabilities."""
        logits = self.logits(text)[-1]
        probs = np.exp(logits - logits.max())
        best = np.argsort(-probs, kind="stable")[:k]
        return [
            (self.tokenizer.decode([int(i)]), float(probs[i] / probs.sum()))
            for i in best
        ]

    @own_settings()
    def log_probs(self, text: str | Sequence[str], context: str = "") -> Any:
        """Log-probabilities, in nats, of a text's tokens given a context: [T] float32.

        Args:
          text: the text to score, such as " positive"; or a list or tuple of texts.
          context: the text before it, or before each, on the same line; a newline is
            read before both.

        If they are longer than the model's context, they are read in windows that
        overlap by half.

        Returns:
          The array; or a list of one for each text. Texts that are computed together
          may round apart from a text alone.

        Raises:
          UserError: if they are not texts, or cannot be encoded as UTF-8.
        """
        _as_text("context", context)
        windows = []
        for name, each in _by_name(text).items():
            check_encodable(context + each, name)
            line = encode_line(context, each, self.tokenizer.encode)
            ids = [self.tokenizer.newline_id, *line.ids]
            windows.append(ReadingWindow(ids, 1 + line.num_context))
        model = dataclasses.replace(self.config, dtype="float32")
        scores = Scorer(model, self.tokenizer.vocab_size)(self.params, windows)
        found = [each.log_probs for each in scores]
        return found[0] if isinstance(text, str) else found

    @own_settings()
    def hidden_states(self, text: str) -> np.ndarray:
        """The embedding and each layer's state of each token: [L + 1, T, D] float32.

        Corresponds to `hidden_states` in transformers.

        Raises:
          UserError: if the text is longer than the context.
        """
        names = interventions.state_names(self.config)
        found = self._forward(_as_text("text", text), names, **_STATES)
        states = np.concatenate([found.recorded[name] for name in names])
        return states.astype(self.config.dtype).astype(np.float32)

    @own_settings()
    def features(self, text: str, layer: int, context_words: int = 0) -> np.ndarray:
        """A layer's hidden state at the end of each word: [words, D] float32.

        Args:
          text: words separated by white space; it may be longer than the context.
          layer: 0 for the embedding, or 1 to the number of layers.
          context_words: words read before each word; 0 reads all that fit, in windows
            that overlap by half.

        Raises:
          UserError: if the layer does not exist, the text has no words, or a word is
            too long.
        """
        read = Reader(self.config, self.params, [layer])
        windows = reading_windows(
            split_words(self.tokenizer, lines_of(_as_text("text", text), "the text")),
            ReadingConfig("text", context_words, overlap=0),
            self.config.max_seq_len,
            self.tokenizer.newline_id,
            after_newline=False,
        )
        return np.concatenate([states[0] for _, states in read(windows)])

    @own_settings()
    def attention(self, text: str) -> np.ndarray:
        """The attention weights of each head: [L, H, T, T] float32.

        Rows are the tokens that attend, columns the tokens attended to; each row sums
        to one. Corresponds to `attentions` in transformers.

        Raises:
          UserError: if the model is an LSTM, which has no attention, or the text is
            longer than the context.
        """
        interventions.check_attention(self.config)
        found = self._forward(_as_text("text", text), [interventions.MAPS], **_STATES)
        return np.concatenate(list(found.recorded.values()))

    @own_settings()
    def generate(
        self,
        text: str | Sequence[str],
        seed: int = 0,
        batch_size: int = 8,
        **sampling: Any,
    ) -> Any:
        """Generates continuations of one or more texts.

        Args:
          text: a text, or a list or tuple of texts.
          seed: the seed of each text's first continuation; the next has seed + 1.
          batch_size: the number of continuations computed together.
          **sampling: `num_return_sequences`, and the fields of
            `gpt1_jax.config.sections.SamplingConfig`, with the names and defaults of
            transformers' GenerationConfig: `max_new_tokens=20`,
            `do_sample=False`, `temperature=1.0`, `top_k=50`, `top_p=1.0`, `min_p=0.0`,
            `repetition_penalty=1.0`, `stop_strings=()`.

        Returns:
          The continuation, without the text; or a list if there are several texts or
          continuations, in which those of one text are adjacent.

        Raises:
          UserError: if an option does not exist or its value is invalid, or a text is
            none.
        """
        number = sampling.pop("num_return_sequences", 1)
        config = _replaced(DEFAULT_SAMPLING, sampling, "num_return_sequences")
        texts = list(_by_name(text).values())
        generator = Generator(self.config, self.tokenizer, config, batch_size)
        continuations = generator.several(self._for_generation, texts, number, seed)
        found = [each.text for each in continuations]
        return found[0] if isinstance(text, str) and number == 1 else found

    @own_settings()
    def surprisal(self, text: str | Sequence[str], **reading: Any) -> Any:
        """Computes the surprisal of each word of one or more texts.

        Args:
          text: words, separated by white space; each line is read on its own. Or a list
            or tuple of texts, which are read apart.
          **reading: the fields of `gpt1_jax.config.reading.WordsConfig`:
            `context="line"`, or "text" to read all lines as one; `context_words=0`, the
            words before each word, 0 for all that fit; `overlap=0`, the tokens that
            windows share, 0 for half the context; `first_word="scored"` or "unscored";
            `punctuation="with_word"` or "apart".

        Returns:
          The words, each with its place in the text, its tokens, surprisal in nats and
          bits, rank, and the entropy before it, computed in float32.
          `pandas.DataFrame` accepts the list. Of several texts, a list of such lists;
          texts that are computed together may round apart from a text alone.

        Raises:
          UserError: if the text has no words, or one longer than the context, or is
            none.
        """
        config = _replaced(DEFAULT_WORDS, reading)
        apart = config.punctuation == "apart"
        texts = [
            list(words_in_sentences(self.tokenizer, lines_of(each, name), apart=apart))
            for name, each in _by_name(text).items()
        ]
        model = dataclasses.replace(self.config, dtype="float32")
        model = scoring_model(model)
        scored = score_words(model, self.params, self.tokenizer, texts, config)
        found = [list(itertools.islice(scored, len(words))) for words in texts]
        return found[0] if isinstance(text, str) else found

    @own_settings()
    def predict(self, texts: Any, batch_size: int = 64) -> Any:
        """Labels texts with a fine-tuned model.

        Args:
          texts: a `pandas.DataFrame` with the task's columns; or an iterable of
            examples: the text of each, or the texts of the task's columns and choices
            in order, or a mapping of columns to texts.
          batch_size: how many to compute together.

        Returns:
          For each example its "label", a list if there may be several, with the
          "probabilities" of all labels, or its "score" if the task has scores. Of a
          DataFrame another: its index and columns, "prediction" and for each label
          "P(LABEL)"; these are empty in rows without text, which one warning counts.

        Raises:
          UserError: if the run was not fine-tuned, an example lacks a text, or the
            DataFrame has a column that would be added.
        """
        task = task_of(self.run)
        if hasattr(texts, "assign"):  # a DataFrame; pandas need not be imported
            return self._predict_frame(task, texts, batch_size)
        columns = (*task.inputs.text, *task.inputs.choices)
        rows = (
            (f"texts[{number}]", _columns(columns, each, f"texts[{number}]"))
            for number, each in enumerate(texts)
        )
        examples = check_new_examples(task, rows)
        found = predict_examples(self.run, self._all_params, task, examples, batch_size)
        names = task.target.labels
        answers = name_predictions(task, examples, found[0])
        return [
            {
                "label": answer,
                "probabilities": dict(zip(names, map(float, row), strict=True)),
            }
            if names
            else {"score": answer}
            for answer, row in zip(answers, found[1], strict=True)
        ]

    def _predict_frame(
        self, task: Task, frame: "pd.DataFrame", batch_size: int
    ) -> "pd.DataFrame":
        """The DataFrame with predictions; see `predict`."""
        names = [each.strip() if isinstance(each, str) else each for each in frame]
        check_names(names, "the DataFrame")
        check_added(names, task, "the DataFrame")
        plain = frame.astype(object).where(frame.notna(), None)
        rows = (
            (f"row {label!r}", dict(zip(names, cells, strict=True)))
            for label, *cells in plain.itertuples(name=None)
        )
        examples = check_new_examples(task, rows, skip_empty=True)
        found = predict_examples(self.run, self._all_params, task, examples, batch_size)
        return frame.assign(**prediction_columns(task, len(frame), examples, *found))

    @own_settings()
    def save(self, folder: str) -> None:
        """Saves the model as a run folder, which every job reads.

        Parameters that were assigned are saved as they are now; the configuration and
        the tokenizer are the run's.

        Args:
          folder: the folder to make, local or gs://.

        Raises:
          FileExistsError: if it exists and is not empty; nothing in it is changed.
          OSError: if the disk has no room.
        """
        params = jax.device_get(self._all_params)
        run = self.run
        save_params(folder, params, run.tokenizer, run.config, run.step)

    @property
    def _all_params(self) -> Params:
        """The parameters as saved: with the head, if the model is fine-tuned."""
        if "transformer" in self.run.params:
            return {**self.run.params, "transformer": self.params}
        return self.params

    def batches(self, step: int) -> list[dict[str, Any]]:
        """The batch that a training update read; needs the unchanged training text.

        Args:
          step: the number of the update, from 1; update n makes the state of step n.

        Returns:
          A record for each sequence, as `TrainingText.batch` describes.

        Raises:
          UserError: if the run has no such update, is not a pre-training run, or its
            text has changed.
          OSError: if its text cannot be read.
        """
        return self._training_text.batch(step)

    @functools.cached_property
    def _training_text(self) -> Any:
        try:
            training_text = pkgutil.resolve_name(_TRAINING_TEXT)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("gpt1_jax.studies"):
                raise
            raise UserError(
                "The batches of a run are looked up by the study in gpt1_jax/studies/"
                "batches, which this installation lacks; install a complete one."
            ) from error
        return training_text(self.run.folder)

    @property
    def _for_generation(self) -> Params:
        """The parameters prepared for decoding, cached until they change."""
        made_from = [self.config, *jax.tree.leaves(self.params)]
        kept = self._prepared_from
        if len(kept) != len(made_from) or any(map(operator.is_not, kept, made_from)):
            self._prepared = decoding.prepare(self.config, self.params)
            self._prepared_from = made_from
        return self._prepared


@own_settings()
def load(folder: str, step: int | str = DEFAULT) -> TrainedModel:
    """See `gpt1_jax.load`."""
    return TrainedModel(calibrated(open_run(resolve_model(folder), step)))


def _replaced(defaults: Config, values: Mapping[str, Any], *others: str) -> Config:
    """The defaults with some values replaced; `others` are further valid names."""
    known = [*others, *(field.name for field in dataclasses.fields(defaults))]
    if unknown := sorted(set(values) - set(known)):
        raise UserError(
            f"There is no option {', '.join(unknown)}; there are {', '.join(known)}."
        )
    return dataclasses.replace(defaults, **values)


def _by_name(text: object) -> dict[str, str]:
    """One text or several, by the names that messages have for them."""
    if not isinstance(text, list | tuple):
        expected = "a str, or a list or tuple of them, as list(column) makes"
        return {"the text": _as_text("text", text, expected)}
    names = (f"texts[{number}]" for number in range(len(text)))
    return {name: _as_text(name, each) for name, each in zip(names, text, strict=True)}


def _as_text(name: str, text: object, expected: str = "a str") -> str:
    """Refuses what is no text; some types, like a Series, have no short `repr`."""
    if not isinstance(text, str):
        kind = type(text).__name__
        raise UserError(f"{name} is of type {kind}; pass {expected}.")
    return text


def _columns(
    names: Sequence[str], example: str | Sequence[str] | Mapping[str, Any], where: str
) -> Mapping[str, Any]:
    """The texts of an example by the names of their columns."""
    if isinstance(example, Mapping):
        return example
    texts = [example] if isinstance(example, str) else list(example)
    if len(texts) != len(names):
        raise UserError(
            f"{where} holds {len(texts)} texts; the task has {', '.join(names)}."
        )
    return dict(zip(names, texts, strict=True))
