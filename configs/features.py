"""Writes hidden states of words or lines, from any run folder.

    python -m gpt1_jax.main --config=configs/features.py \
        --config.init_from=runs/pretrain/quickstart --config.input=novel.txt \
        --config.context=text --config.output=novel.npz
    ... --config.input=story.csv --config.words_column=word --config.context_words=5 \
        --config.layers=9 --config.output=story.h5

The file has an array for each layer with a row for each word or line, and names the
word or line of each row; docs/features.md has the rules.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """The configuration for hidden states of words and lines."""
    return config_dict.create(
        job="features",
        preset="",
        init_from="",  # the folder of a run: pre-trained, fine-tuned or converted
        # The saved step: "default" (a fine-tuned run's best, any other run's newest),
        # "newest", "best" or a number.
        step="default",
        input="",  # a .txt file, or a table: .csv, .tsv or .jsonl
        lines_column="",  # a table's column with a line in each row; or
        words_column="",  # its column with a word in each row
        text_column="",  # with words: a new text begins where this column changes
        layers=(),  # 0 is the embedding, then 1 to the number of layers; empty: all
        # "words": the state at the end of each word. For each line: "last", the state
        # of its last token; "mean", the mean over its tokens; "extract", the state that
        # the head of a fine-tuned model reads.
        rows="words",
        # The context of a word: "line", the words before it in its line (in a table: in
        # its text), or "text", all words before it, including line ends.
        context="line",
        context_words=0,  # words to read before each word; 0: all that fit
        # For texts longer than the model's context: tokens that a reading window shares
        # with the next one; 0: half of the context.
        overlap=0,
        attention=False,  # also write the attention maps of each line
        output="",  # an .npz or .h5 file
        output_dtype="float32",  # or "float16", half the size
        dtype="float32",  # of the computation; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
