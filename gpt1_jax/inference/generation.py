"""Text from a language model: prompts in, continuations out."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.checks import Seed, check_encodable, check_value
from gpt1_jax.config.sections import DEFAULT_SAMPLING, EvalConfig, SamplingConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.inference.decoding import TOKEN_BYTES, Continuation, Decoder
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel.devices import require_memory

_CONTINUATION_BYTES = 500  # the least memory of the host for a continuation


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a prompt, or of a newline if it is empty.

    Raises:
      UserError: if UTF-8 cannot encode it.
    """
    check_encodable(prompt, "the prompt")
    return tokenizer.encode(prompt) or [tokenizer.newline_id]


class Generator:
    """Generates continuations of texts.

    Args:
      model: configuration of the language model.
      tokenizer: the model's tokenizer.
      config: length, filters and stop strings. Case is ignored in stop strings if
        the tokenizer lowercases text.
      batch_size: continuations computed together.
      round_size: tokens drawn before the text is updated; 0 chooses a fast number.
      longest_prompt: how many tokens at the end of a prompt are read; 0 for all.
    """

    def __init__(
        self,
        model: ModelConfig,
        tokenizer: Tokenizer,
        config: SamplingConfig,
        batch_size: int = 1,
        round_size: int = 0,
        longest_prompt: int = 0,
    ):
        self._tokenizer, self._config = tokenizer, config
        self._max_seq_len, self._longest_prompt = model.max_seq_len, longest_prompt
        # Between a prompt and its continuation.
        self.separator = " " if tokenizer.marks_word_ends else ""
        self._stop_strings = [tokenizer.cased(text) for text in config.stop_strings]
        self._decode = Decoder(
            model, tokenizer.vocab_size, config, batch_size, round_size, self._kept
        )

    def __call__(
        self, params: Params, prompts: Sequence[str], seeds: Sequence[int]
    ) -> list[Continuation]:
        """The continuations, in the order of the prompts.

        Args:
          params: as `decoding.prepare` returns them.
          prompts: texts; an empty one is a newline, as the model has no start token.
          seeds: one for each prompt, in [0, 2**32).
        """
        finished = dict(self.as_finished(params, prompts, seeds))
        return [finished[number] for number in range(len(prompts))]

    def as_finished(
        self, params: Params, prompts: Sequence[str], seeds: Sequence[int]
    ) -> Iterator[tuple[int, Continuation]]:
        """Yields each continuation when it is finished, with its prompt's number."""
        continuations = [
            Continuation(prompt, self._ids(prompt), seed)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        numbers = {id(each): number for number, each in enumerate(continuations)}
        for continuation in self._decode(params, continuations):
            if continuation.finish_reason:
                continuation.text = self._text(continuation)
                yield numbers[id(continuation)], continuation

    def several(
        self, params: Params, prompts: Sequence[str], number: int, seed: int
    ) -> list[Continuation]:
        """`number` continuations of each prompt, with the seeds from `seed` on.

        Raises:
          UserError: see `check_memory`; or if a seed is not in [0, 2**32).
        """
        for each in (seed, seed + number - 1):
            check_value("seed", Seed, each)
        self.check_memory(prompts, number)
        samples = range(number)
        return self(
            params,
            [prompt for prompt in prompts for _ in samples],
            [seed + sample for _ in prompts for sample in samples],
        )

    def stream(self, params: Params, prompt: str, seed: int) -> Iterator[str]:
        """The continuation of one prompt, word by word, each with the space after it.

        Joined, the parts are the text that calling the generator gives.
        """
        text, yielded = "", 0
        continuation = Continuation(prompt, self._ids(prompt), seed)
        for _ in self._decode(params, [continuation]):
            text = self._text(continuation)
            whole = max(text.rfind(" "), text.rfind("\n")) + 1
            if whole > yielded:
                yield text[yielded:whole]
                yielded = whole
        yield text[yielded:]

    def check_memory(self, prompts: Sequence[str], number: int = 1) -> None:
        """Refuses more continuations, or larger batches, than memory holds.

        Raises:
          UserError: naming the number, the memory it needs and the memory there is.
        """
        drawn = 0 if self._config.stop_strings else self._config.max_new_tokens
        require_memory(
            f"num_return_sequences={number}",
            len(prompts) * number * (_CONTINUATION_BYTES + drawn * TOKEN_BYTES),
            f"Lower it, or max_new_tokens={self._config.max_new_tokens}.",
            on_host=True,
        )
        self._decode.check_memory(max((len(self._ids(p)) for p in prompts), default=1))

    def outgrows(self, prompts: Iterable[str]) -> bool:
        """Whether a continuation may outgrow the context, which then slides."""
        longest = max(len(self._ids(prompt)) for prompt in prompts)
        return longest + self._config.max_new_tokens - 1 > self._max_seq_len

    def _ids(self, prompt: str) -> list[int]:
        return prompt_ids(self._tokenizer, prompt)[-self._longest_prompt :]

    def _text(self, continuation: Continuation) -> str:
        """The text of the drawn tokens, up to the end of the first stop string."""
        text = self._drawn(continuation, len(continuation.tokens))
        return text[: self._end(text)]

    def _drawn(self, continuation: Continuation, count: int) -> str:
        """The text of the first drawn tokens, as it follows the prompt."""
        tokens = continuation.tokens[:count]
        if self._tokenizer.marks_word_ends:
            return self._tokenizer.decode(tokens)
        last = list(continuation.ids[-1:])  # it tells whether a space comes first
        before = self._tokenizer.decode(last)
        whole = self._tokenizer.decode([*last, *tokens])
        if whole.startswith(before):
            return whole[len(before) :]
        return self._tokenizer.decode(tokens)

    def _kept(self, continuation: Continuation, before: int) -> int | None:
        """The number of tokens that end the first stop string; None without one."""
        counts = range(before + 1, len(continuation.tokens) + 1)
        if not self._stop_strings or not self._stops(continuation, counts[-1]):
            return None
        return next(count for count in counts if self._stops(continuation, count))

    def _stops(self, continuation: Continuation, count: int) -> bool:
        return self._end(self._drawn(continuation, count)) is not None

    def _end(self, text: str) -> int | None:
        """The end of the first stop string; None if the text has none."""
        found = ((text.find(stop), stop) for stop in self._stop_strings)
        ends = [start + len(stop) for start, stop in found if start >= 0]
        return min(ends, default=None)


class TextSampler:
    """Continues the prompt of pre-training, which finds this class by name.

    Args:
      model: configuration of the language model.
      config: prompt, length (at least 1), temperature and top-k.
      tokenizer: the model's tokenizer.
      seed: the random seed of the samples.

    Raises:
      ValueError: if the prompt leaves no room for a sample, or the host cannot hold it.
    """

    def __init__(
        self, model: ModelConfig, config: EvalConfig, tokenizer: Tokenizer, seed: int
    ):
        self._tokenizer, self._seed = tokenizer, seed
        # After a newline: the model has no start token.
        self._prompt = [
            tokenizer.newline_id,
            *tokenizer.encode(config.sample_prompt),
        ]
        if len(self._prompt) >= model.max_seq_len:
            raise UserError(
                f"config.eval.sample_prompt takes {len(self._prompt)} tokens; with "
                f"config.model.max_seq_len={model.max_seq_len} there is no room to "
                "continue it. Shorten the prompt."
            )
        require_memory(
            f"config.eval.sample_tokens={config.sample_tokens}",
            config.sample_tokens * TOKEN_BYTES,
            "Lower it.",
            on_host=True,
        )
        sampling = dataclasses.replace(
            DEFAULT_SAMPLING,
            max_new_tokens=config.sample_tokens,
            do_sample=True,
            temperature=config.sample_temperature,
            top_k=config.sample_top_k,
        )
        self._decode = Decoder(model, tokenizer.vocab_size, sampling, batch_size=1)

    def __call__(self, params: Params) -> str:
        """A continuation of the prompt; the same for the same parameters and seed."""
        sample = Continuation("", self._prompt, self._seed)
        for _ in self._decode(params, [sample]):
            pass
        return self._tokenizer.decode([*self._prompt, *sample.tokens]).strip("\n")
