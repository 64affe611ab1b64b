"""Measures how well surprisal predicts how long people read each word.

    python -m gpt1_jax.main --config=configs/reading_times.py:natural_stories \
        --config.init_from=runs/pretrain/quickstart [--config.step=milestones] \
        --config.data.times=natural_stories/processed_wordinfo.tsv

Presets:
  natural_stories  self-paced reading of ten stories (Futrell et al. 2021; the default).
  babylm           the self-paced times of BabyLM's reading_data.csv, 205 sentences.
  custom           a table of your own; name its columns.

Linear models of the times, without and with surprisal, are compared on stories that
they were not fitted to; docs/reading-times.md says how. Needs the extra [reading].
"""

import ml_collections
from ml_collections import config_dict


def get_config(preset: str = "natural_stories") -> ml_collections.ConfigDict:
    """The configuration for comparing surprisal with reading times."""
    if preset not in ("natural_stories", "babylm", "custom"):
        raise ValueError(
            f"configs/reading_times.py has no preset {preset!r}; choose one of "
            "natural_stories, babylm, custom."
        )
    config = config_dict.create(
        job="reading_times",
        preset=preset,
        init_from="",  # the folder of a run: pre-trained, fine-tuned or converted
        baseline_init_from="",  # another run to score, drawn dashed; empty: none
        # The saved step of both: "default" (a fine-tuned run's best, any other run's
        # newest), "newest", "best" or a number; or "all" saved steps or the
        # "milestones".
        step="default",
        data=config_dict.create(
            times="",  # a table of words with reading times: .csv, .tsv or .jsonl
            # The columns of the table:
            word="word",
            time="time",  # milliseconds; an empty cell or NA: not measured
            story="story",  # a new story begins where it changes
            # The number of the word in its story, if rows are in another order; empty:
            # rows are in the order of the story.
            position="",
            # The text before the word, where each row has its own, in any order; empty:
            # the rows of a story are its text.
            context="",
            length="",  # characters of the word; empty: they are counted
            log_frequency="",  # empty: counted in frequency_corpus
            # A table of the words alone, to compare with: the same columns for word,
            # story and position; empty: none.
            text="",
        ),
        # Files, folders or globs of text in which words are counted; empty: the text
        # that the run was trained on.
        frequency_corpus="",
        # Words to leave out: with "punctuation", or "unknown" in the frequency corpus.
        # Words that do not follow two words with a frequency are always left out.
        exclude=("punctuation", "unknown"),
        folds=10,  # for cross-validation over stories; at most one per story
        batch_tokens=2048,  # tokens computed together
        dtype="float32",  # or "bfloat16"; empty: the run's own
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
    )
    if preset == "natural_stories":
        config.data.update(time="meanItemRT", story="item", position="zone")
    if preset == "babylm":
        config.data.update(
            time="self_paced_reading_time",
            story="item",
            context="item",
            length="length",
            log_frequency="Subtlex_log10",
        )
    return config.lock()
