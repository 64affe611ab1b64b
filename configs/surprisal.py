"""How surprising each word of a text is, from any run folder.

    python -m gpt1_jax.main --config=configs/surprisal.py \
        --config.init_from=runs/pretrain/quickstart --config.text='it was a dark night'
    ... --config.input=novel.txt --config.context=text
    ... --config.input=reading_times.csv --config.words_column=word \
        --config.text_column=item --config.output=with_surprisal.csv

Words are separated by white space. A word's surprisal is -log P(word | what stands
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
        # Which step: "default" is a fine-tuned run's best, any other run's newest; or
        # "newest", "best" or a number; "all" that are saved, or "milestones", those
        # kept for good, each in turn.
        step="default",
        text="",  # a text, or
        input="",  # a .txt file, or a table of words: .csv, .tsv or .jsonl
        words_column="",  # of a table: each row has a word, and keeps its columns
        text_column="",  # of a table: where its value changes, a new text begins
        # What is read before a word: "line", the words before it in its line (given
        # words: in their text), or "text", all words before it, line ends included.
        context="line",
        context_words=0,  # words read before each word; 0: all that fit
        # Where a text is longer than the model's context: tokens of a window that the
        # next one reads again; 0: half of the context.
        overlap=0,
        first_word="scored",  # as after a line end; "unscored": not at all
        punctuation="with_word",  # "apart": rows of its own, where tokens allow it
        output="",  # a .csv, .tsv or .npz file; empty: standard output, as a table
        plot="",  # a .png file: the first words, and the mean at each step
        dtype="float32",  # "bfloat16" is rougher; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
