"""Run folders in EleutherAI's lm-evaluation-harness, the package lm_eval.

    python -m gpt1_jax.eval_harness --model gpt1_jax \
        --model_args init_from=runs/pretrain/quickstart,step=newest --tasks ...

is the command `lm_eval`, which finds no model class outside its own package: its
registry reads no entry points, and `--include_path` leads only to tasks. In Python,
importing this module registers the model. It needs no PyTorch.
"""

import dataclasses
import inspect
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gpt1_jax
from gpt1_jax import addresses
from gpt1_jax.config.checks import NEWEST, DType, Seed, check_value, require
from gpt1_jax.config.sections import (
    DEFAULT_SAMPLING,
    SamplingConfig,
    compilation_cache,
)
from gpt1_jax.data.progress import Bar
from gpt1_jax.data.text import brief, printable
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.errors import UserError, from_extra
from gpt1_jax.inference import decoding
from gpt1_jax.inference.generation import Generator, prompt_ids
from gpt1_jax.inference.prefix_tree import common_length
from gpt1_jax.inference.scoring import BATCH_TOKENS, Scorer
from gpt1_jax.ops.settings import own_settings
from gpt1_jax.parallel import devices
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import open_run, say_what_is_read
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.streams import open_streams

with from_extra("lm-eval", "gpt1_jax.eval_harness"):
    import lm_eval.utils
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

_AUTO = "auto"
_AUTO_BATCH = 8  # continuations
_MAX_GEN_TOKS = 256  # the default, as in lm_eval's class for transformers
_MOST_GEN_TOKS = 32_768  # the most of any task in lm_eval
_REQUEST = "lm_eval's request"  # for messages


@register_model("gpt1_jax")
class RunLM(TemplateLM):
    """The language model of a run as lm_eval's tasks call it.

    Args:
      init_from: the run folder, local or gs://.
      step: "newest", "best", "default" or the number of a saved step.
      dtype: "float32" or "bfloat16", to compute in.
      batch_size: texts as long as the context that are computed together, or "auto".
        Short texts share their place: at least 2,048 tokens are scored together.
      add_bos_token: whether each text begins with a newline, as a paragraph does in
        training, or only what has nothing else before it.
      seed: seed of the first continuation, if a task samples; the next has seed + 1.

    Raises:
      FileNotFoundError: if there is no run, or no checkpoint of that step.
      UserError: if an argument is impossible, or a file is damaged.
    """

    @own_settings()
    def __init__(
        self,
        init_from: str,
        step: int | str = NEWEST,
        dtype: DType = "float32",
        batch_size: int | str = _AUTO,
        add_bos_token: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        check_value("dtype", DType, dtype)
        check_value("add_bos_token", bool, add_bos_token)
        check_value("seed", Seed, seed)
        number = str(batch_size)
        require(
            number == _AUTO or (number.isdecimal() and int(number) > 0),
            f"batch_size={batch_size!r} must be {_AUTO} or a number above 0.",
        )
        run = open_run(addresses.resolve_model(str(init_from), "init_from"), step)
        say_what_is_read(run)
        self._run, self._tokenizer, self._seed = run, run.tokenizer, seed
        self._begin = [self.eot_token_id] if add_bos_token else []
        self._batch_size, tokens = _AUTO_BATCH, BATCH_TOKENS
        if number != _AUTO:
            self._batch_size = int(number)
            tokens = max(tokens, self._batch_size * run.model.max_seq_len)
        self._model = scoring_model(run.model_in(dtype))
        self._score = Scorer(self._model, run.tokenizer.vocab_size, tokens)
        self._params = jax.tree.map(jnp.asarray, run.language_model)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> "RunLM":
        """Makes the model from `--model_args`, like `create_from_arg_obj`."""
        arguments = lm_eval.utils.simple_parse_args_string(arg_string)
        return cls.create_from_arg_obj(arguments, additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "RunLM":
        """Makes the model from arguments by name.

        Of lm_eval's own, `batch_size` counts unless the model has one; "cuda:0" and the
        like mean nothing to JAX, which chooses its devices itself.

        Raises:
          UserError: if there is no such argument, or as the class.
        """
        batch_size = (additional_config or {}).get("batch_size")
        arguments = {"batch_size": batch_size or _AUTO, **arg_dict}
        signature = inspect.signature(cls)
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise UserError(
                f"--model_args of gpt1_jax: {error}; the arguments are "
                f"{', '.join(signature.parameters)}, as in "
                "init_from=runs/pretrain/quickstart."
            ) from error
        return cls(**arguments)

    def get_model_info(self) -> dict[str, Any]:
        """The facts that lm_eval writes into its results beside the arguments."""
        return {
            "model_num_parameters": sum(x.size for x in jax.tree.leaves(self._params)),
            "model_dtype": self._model.dtype,
            "init_from": str(self._run.folder),
            "step": self._run.step,
            "gpt1_jax_version": gpt1_jax.__version__,
        }

    # --- tokens -----------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """The newline, which stands before a text without a context, as in training."""
        return self._tokenizer.newline_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """The ids of a text as it is; there are no special tokens to add."""
        check_value(_REQUEST, str, string)
        return self._tokenizer.encode(string)

    def _encode_pair(
        self, context: str, continuation: str
    ) -> tuple[list[int], list[int]]:
        """The tokens of a context and those of its continuation.

        White space at the end of the context belongs to the continuation. If the
        context then is empty, a newline stands before the continuation, unless it
        begins with one.

        Both are encoded as one text, since the spelling of a word depends on what
        follows. If the context ends inside a word, lm_eval's own cut, which counts the
        tokens that the context has by itself, may fall anywhere. Then the tokens that
        the continuation has by itself are scored, as after the bracket in "(" and "a)";
        but between two letters, as in "un" and "ited", or if the text does not end with
        those tokens, the word is scored whole. So no part of a continuation is lost,
        and every continuation of a context is scored with the same part of that
        context.
        """
        check_value(_REQUEST, str, context)
        check_value(_REQUEST, str, continuation)
        read = context.rstrip()
        continuation = context[len(read) :] + continuation
        ids, newline = self.tok_encode(read + continuation), self.eot_token_id
        if not read:
            return [newline], ids[ids[:1] == [newline] :]
        known = self.tok_encode(read)
        first = common_length(ids, known)
        if first < len(known):
            alone = self.tok_encode(continuation)
            apart = not (read[-1].isalnum() and continuation[:1].isalnum())
            if apart and alone and ids[-len(alone) :] == alone:
                first = len(ids) - len(alone)
            else:
                before = read[: -len(read.split()[-1])]
                first = common_length(ids, self.tok_encode(before))
        begin = self._begin or [newline] * (first == 0)
        return [*begin, *ids[:first]], ids[first:]

    # --- scores -----------------------------------------------------------------

    @own_settings()
    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log P, in nats, of continuations of contexts, and whether each is greedy.

        A text that is too long loses its beginning.

        Args:
          requests: their arguments are a context, which may be empty, and a
            continuation. One without tokens has a log-likelihood of 0.
          disable_tqdm: whether to show no progress.

        Raises:
          UserError: if a continuation has more tokens than the model reads, or an
            argument is not text.
        """
        # TemplateLM's own would fail for a continuation without tokens.
        pairs = [(each.args, *self._encode_pair(*each.args)) for each in requests]
        longest = self._model.max_seq_len
        for (context, text), _, scored in pairs:
            require(
                len(scored) <= longest,
                f"The continuation {brief(text)} of {brief(context)} has "
                f"{len(scored)} tokens to score; this model scores up to {longest}.",
            )
        return self._loglikelihood_tokens(pairs, disable_tqdm)

    @own_settings()
    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log P, in nats, of whole texts, a newline before each.

        A text longer than the context is read in lm_eval's windows
        (`lm_eval.utils.get_rolling_token_windows`): each token is scored once, and the
        last window is as long as the others.

        Args:
          requests: their argument is a text.
          disable_tqdm: whether to show no progress.

        Raises:
          UserError: if an argument is not text.
        """
        windows, owners = [], []
        for number, (text,) in enumerate(request.args for request in requests):
            pairs = lm_eval.utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.eot_token_id,
                max_seq_len=self._model.max_seq_len,
                context_len=1,
            )
            for pair in map(lm_eval.utils.make_disjoint_window, pairs):
                windows.append((None, *pair))
                owners.append(number)
        totals = [0.0] * len(requests)
        scores = self._loglikelihood_tokens(windows, disable_tqdm)
        for owner, (log_prob, _) in zip(owners, scores, strict=True):
            totals[owner] += log_prob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        """Scores tokens that follow others; caches only requests that have texts.

        The last of them is not read, so at most `max_seq_len` can be scored.
        """
        longest = self._model.max_seq_len
        answers = [(0.0, True)] * len(requests)
        numbers = [number for number, (*_, scored) in enumerate(requests) if scored]
        windows, num_cut = [], 0
        for _, read, scored in (requests[number] for number in numbers):
            kept = read[max(0, len(read) + len(scored) - longest - 1) :]
            windows.append(ReadingWindow([*kept, *scored], len(kept)))
            num_cut += len(kept) < len(read)
        _say_cut(num_cut, len(requests), f"{longest} tokens before the last")
        self._score.check_memory(windows, f"batch_size={self._batch_size}")
        with Bar("score", len(windows), "window", active=not disable_tqdm) as bar:
            for place, scores in self._score.as_computed(self._params, windows):
                number = numbers[place]
                total = float(scores.log_probs.sum(dtype=np.float64))
                greedy = bool((scores.log_probs == scores.highest).all())
                answers[number] = answer = total, greedy
                if texts := requests[number][0]:
                    self.cache_hook.add_partial("loglikelihood", texts, answer)
                bar.update()
        return answers

    # --- continuations -----------------------------------------------------------

    @own_settings()
    def generate_until(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[str]:
        """Continues texts, each up to a stop string, which is left out.

        Args:
          requests: their arguments are a text, of which an empty one is a newline, and
            lm_eval's `generation_kwargs`: `until`, whose stop strings match whatever
            their case, `max_gen_toks`, `do_sample`, `temperature`, `top_k`, `top_p`,
            `min_p` and `repetition_penalty`; see `_sampling`. A text that leaves no
            room for `max_gen_toks` loses its beginning.
          disable_tqdm: whether to show no progress.

        Raises:
          UserError: if there is no such argument, or its value is impossible.
        """
        by_sampling: dict[SamplingConfig, list[int]] = {}
        for number, (text, values) in enumerate(request.args for request in requests):
            check_value(_REQUEST, str, text)
            by_sampling.setdefault(_sampling(values), []).append(number)
        params = decoding.prepare(self._model, self._params)
        texts = [""] * len(requests)
        with Bar("generate", len(requests), "text", active=not disable_tqdm) as bar:
            for sampling, numbers in by_sampling.items():
                prompts = [requests[number].args[0] for number in numbers]
                # Without any room the context slides.
                room = max(0, self._model.max_seq_len - sampling.max_new_tokens)
                lengths = [len(prompt_ids(self._tokenizer, each)) for each in prompts]
                _say_cut(
                    sum(length > room > 0 for length in lengths),
                    len(prompts),
                    f"{room} tokens, so that max_gen_toks={sampling.max_new_tokens} "
                    "more fit behind",
                )
                generator = Generator(
                    self._model,
                    self._tokenizer,
                    sampling,
                    self._batch_size,
                    longest_prompt=room,
                )
                generator.check_memory(prompts)
                seeds = [(self._seed + number) % 2**32 for number in numbers]
                stops = list(map(self._tokenizer.cased, sampling.stop_strings))
                for place, found in generator.as_finished(params, prompts, seeds):
                    text = postprocess_generated_text(found.text, stops, None)
                    texts[numbers[place]] = text
                    arguments = requests[numbers[place]].args
                    self.cache_hook.add_partial("generate_until", arguments, text)
                    bar.update()
        return texts


def _sampling(values: Any) -> SamplingConfig:
    """The sampling that a task's `generation_kwargs` ask for.

    None stands for the default, as in transformers.

    Raises:
      UserError: naming what is unknown or impossible.
    """
    try:
        given = {key: value for key, value in values.items() if value is not None}
        stops = given.pop("until", ())
        stops = (stops,) if isinstance(stops, str) else stops
        given = {**normalize_gen_kwargs(given, _MAX_GEN_TOKS)}
        del given["until"]
        if not given["do_sample"]:
            given.pop("temperature", None)
        length = given.pop("max_gen_toks")
        require(
            length <= _MOST_GEN_TOKS,
            f"max_gen_toks={length} must be at most {_MOST_GEN_TOKS:,}: the model has "
            "no end token, and stops no earlier without a stop string; set it with "
            "--gen_kwargs max_gen_toks=256.",
        )
        return dataclasses.replace(
            DEFAULT_SAMPLING,
            max_new_tokens=length,
            stop_strings=tuple(text for text in stops if text != ""),
            **given,
        )
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        *others, _ = (field.name for field in dataclasses.fields(SamplingConfig)[1:])
        raise UserError(
            f"generation_kwargs={brief(values)}: {str(error).rstrip('.')}. Arguments "
            f"are until, max_gen_toks, {', '.join(others)}."
        ) from error


def _say_cut(num_cut: int, total: int, fitting: str) -> None:
    if num_cut:
        say(
            f"{num_cut:,} of {total:,} texts lost their beginning, to fit {fitting}.",
            beside_output=True,
        )


def run() -> None:
    """The command `lm_eval` with our model: `python -m gpt1_jax.eval_harness`."""
    open_streams()
    devices.configure("default", compilation_cache(""))
    try:
        cli_evaluate()
    except KeyboardInterrupt:
        sys.exit("gpt1_jax: interrupted.")
    except (UserError, OSError) as error:
        sys.exit(printable(f"gpt1_jax: error: {error}"))
