"""Computes the surprisal of each word of a text, from any run folder.

    python -m gpt1_jax.main --config=configs/surprisal.py \
        --config.init_from=runs/pretrain/quickstart --config.text='it was a dark night'
    ... --config.input=novel.txt --config.context=text
    ... --config.input=reading_times.csv --config.words_column=word \
        --config.text_column=item --config.output=with_surprisal.csv

Words are separated by white space. A word's surprisal is -log P(word | the text
before it), in nats and in bits; docs/surprisal.md has the rules.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """The configuration for the surprisal of words."""
    return config_dict.create(
        job="surprisal",
        preset="",
        init_from="",  # the folder of a run: pre-trained, fine-tuned or converted
        # The saved step: "default" (a fine-tuned run's best, any other run's newest),
        # "newest", "best" or a number; or "all" saved steps or the "milestones", one
        # after another.
        step="default",
        text="",  # a text, or
        input="",  # a .txt file, or a table of words: .csv, .tsv or .jsonl
        words_column="",  # a table's column with a word in each row
        text_column="",  # a table's column: a new text begins where its value changes
        # The context of a word: "line", the words before it in its line (in a table: in
        # its text), or "text", all words before it, including line ends.
        context="line",
        context_words=0,  # words to read before each word; 0: all that fit
        # For texts longer than the model's context: tokens that a reading window shares
        # with the next one; 0: half of the context.
        overlap=0,
        first_word="scored",  # as if after a line end; "unscored": without a value
        punctuation="with_word",  # "apart": in its own rows, where tokens allow it
        output="",  # a .csv, .tsv or .npz file; empty: standard output, as a table
        plot="",  # a .png file: the first words, and the mean at each step
        dtype="float32",  # "bfloat16" is less precise; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
