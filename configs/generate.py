"""Generates text that continues prompts, from any run folder.

    python -m gpt1_jax.main --config=configs/generate.py \
        --config.init_from=runs/pretrain/quickstart --config.prompt='it was a'
    ... --config.input=prompts.txt --config.output=continuations.jsonl

Prompts come from a flag, from a file (one on each line, or JSON lines with "prompt") or
from standard input; at a terminal, the program asks for them. A single continuation
appears word by word as it is generated.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """The configuration for continuing texts."""
    return config_dict.create(
        job="generate",
        preset="",
        init_from="",  # the folder of a run: pre-trained, fine-tuned or converted
        # The saved step: "default" (a fine-tuned run's best, any other run's newest),
        # "newest", "best" or a number.
        step="default",
        prompt="",  # one text, or
        input="",  # a file of them, .jsonl or one a line; "-": standard input
        output="",  # a .jsonl file; empty: standard output, as text
        num_return_sequences=1,  # continuations of each prompt
        seed=0,  # for each prompt's first continuation; the next has seed + 1, ...
        # Continuations computed together. Each is independent of the others, but its
        # last bits may depend on this number.
        batch_size=8,
        dtype="",  # "float32" or "bfloat16"; empty: the run's own
        log_probs=False,  # write the log-probability of each token, in nats
        compilation_cache_dir="",  # empty: ~/.cache/gpt1_jax/xla
        sampling=config_dict.create(  # named as in transformers' GenerationConfig
            max_new_tokens=40,
            do_sample=True,  # False: always the most likely token
            temperature=1.0,
            top_k=40,  # draw from the k most likely tokens; 0: from all
            top_p=1.0,  # draw from the most likely that together have this probability
            min_p=0.0,  # draw from tokens at least this fraction as likely as the best
            repetition_penalty=1.0,  # above 1 makes tokens of the text so far rarer
            stop_strings=(),  # texts that end a continuation and stay in it
        ),
    ).lock()
