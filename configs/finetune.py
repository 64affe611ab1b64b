"""Fine-tunes a run on tasks (Radford et al. 2018, sec. 3.2 and 4.1).

    python -m gpt1_jax.main --config=configs/finetune.py:TASK \
        --config.init_from=runs/pretrain/quickstart [--config.seeds=0,1,2]

Separate several values by commas: 0,1,2 or cola,rte. TASK is one of the tasks below,
several joined by "+", `all` (the first line), or `custom`:

    snli mnli qnli sci_tail rte race story_cloze copa mrpc qqp stsb cola sst2 wnli
    boolq multirc wsc

or the tasks and settings of BabyLM's evaluation (docs/babylm.md):

    babylm          rte, mrpc, qqp and mnli: 10 epochs of batches of 32
    babylm_long     boolq and multirc: 10 epochs of batches of 16
    babylm_wsc      wsc: 30 epochs of batches of 32

or one of the paper's analyses, which compare variants of a run (docs/analyses.md):

    ablations       Table 5: no pre-training, no auxiliary objective, an LSTM
    layer_transfer  Figure 2, left: how many layers are transferred
    aux_lm_weight   the auxiliary objective's weight at several training-set sizes

A task of your own needs no code, only tables, JSON or Parquet:

    --config=configs/finetune.py:custom --config.custom.head=classification \
        --config.custom.text=title,body --config.custom.label=topic \
        --config.data.train=train.jsonl --config.data.dev=dev.jsonl

What is not set here has its default: see --help, or docs/configuration.md.
"""

import ml_collections

from gpt1_jax.config import default_config

_COMPARISONS = {  # the tasks of each analysis
    "ablations": "cola+sst2+mrpc+stsb+qqp+mnli+qnli+rte",  # the columns of Table 5
    "layer_transfer": "race+mnli",
    "aux_lm_weight": "mrpc+rte+qqp+mnli",  # two small ones and two large ones
}

_BABYLM = {  # tasks, batch size and epochs
    "babylm": ("rte+mrpc+qqp+mnli", 32, 10.0),
    "babylm_long": ("boolq+multirc", 16, 10.0),
    "babylm_wsc": ("wsc", 32, 30.0),
}


def get_config(tasks: str = "sst2") -> ml_collections.ConfigDict:
    """The configuration of fine-tuning on one task, several or all, or an analysis."""
    config = default_config("finetune", tasks)
    config.tasks = tuple(_COMPARISONS.get(tasks, tasks).split("+"))
    config.optimizer.update(  # sec. 4.1, "Fine-tuning details"
        name="released_adam",
        learning_rate=6.25e-5,
        weight_decay=0.01,  # as of pre-training
        schedule="linear",
        warmup_fraction=0.002,  # of all updates
    )
    config.train.update(  # sec. 4.1
        num_epochs=3.0,  # each leaves out its last partial batch
        batch_size=32,  # examples over all devices
    )
    config.head.update(
        dropout=0.1,  # sec. 4.1, on the state at the extract token
        aux_lm_weight=0.5,  # lambda of L3 = L2 + lambda L1 (eq. 5, sec. 4.1)
    )
    config.log.every_steps = 20
    if tasks == "custom":
        config.data.source = "files"
    if tasks in _COMPARISONS:
        config.suite.compare = tasks
    if tasks == "layer_transfer":
        config.eval.train_examples = 2000  # Figure 2, left, dashed
    if tasks in _BABYLM:
        named, batch_size, num_epochs = _BABYLM[tasks]
        config.tasks = tuple(named.split("+"))
        config.seeds = (42,)
        config.data.source = "babylm"
        config.head.aux_lm_weight = 0.0
        config.optimizer.update(
            name="adamw",
            learning_rate=3e-5,
            clip_norm=1e9,  # its gradients are not clipped
            schedule="cosine_after_warmup",
            warmup_fraction=0.06,
            final_fraction=0.1,
        )
        config.train.update(batch_size=batch_size, num_epochs=num_epochs)
        config.eval.first_epoch_steps = ()
    return config.lock()
