"""Hidden states of words or lines, from any run folder.

    python -m gpt1_jax.main --config=configs/features.py \
        --config.init_from=runs/pretrain/quickstart --config.input=novel.txt \
        --config.context=text --config.output=novel.npz
    ... --config.input=story.csv --config.words_column=word --config.context_words=5 \
        --config.layers=9 --config.output=story.h5

The file has an array for each layer, a row for each word or line, and says what each
row is; docs/features.md has the rules.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """The configuration for hidden states of words and lines."""
    return config_dict.create(
        job="features",
        preset="",
        init_from="",  # the folder of a run: pre-trained, fine-tuned or converted
        # Which step: "default" is a fine-tuned run's best, any other run's newest; or
        # "newest", "best" or a number.
        step="default",
        input="",  # a .txt file, or a table: .csv, .tsv or .jsonl
        lines_column="",  # of a table: each row has a line, or
        words_column="",  # each row has a word, which is a row of features
        text_column="",  # with words: where its value changes, a new text begins
        layers=(),  # 0 is the embedding, then 1 to the number of layers; empty: all
        # "words": the state at the end of each word. Of each line: "last", the state of
        # its last token; "mean", the mean over its tokens; "extract", what the head of
        # a fine-tuned model reads.
        rows="words",
        # What is read before a word: "line", the words before it in its line (given
        # words: in their text), or "text", all words before it, line ends included.
        context="line",
        context_words=0,  # words read before each word; 0: all that fit
        # Where a text is longer than the model's context: tokens of a window that the
        # next one reads again; 0: half of the context.
        overlap=0,
        attention=False,  # also keep the attention maps of each line
        output="",  # an .npz or .h5 file
        output_dtype="float32",  # or "float16", half the size
        dtype="float32",  # of the computation; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    ).lock()
