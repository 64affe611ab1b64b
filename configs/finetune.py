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
"""

import ml_collections
from ml_collections import config_dict

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
    custom = tasks == "custom"
    compare = tasks if tasks in _COMPARISONS else ""
    config = config_dict.create(
        job="finetune",
        preset=tasks,  # names the default folder: runs/finetune/TASK
        tasks=tuple(_COMPARISONS.get(tasks, tasks).split("+")),
        seeds=(0,),  # for head and special tokens, data order, dropout masks
        init_from="",  # the folder of a pre-trained run
        # Its saved step: "default" (the newest), "best" or a number.
        step="default",
        # Layers to copy from it, from the first on: "all", a number (0 copies only the
        # embeddings; Figure 2, left), or "none" (Table 5, no pre-training).
        transfer_layers="all",
        model=config_dict.create(  # the sizes come from the pre-trained run
            embed_dropout=0.1,
            attn_dropout=0.1,
            resid_dropout=0.1,
            embed_dropout_on="sum",  # see configs/pretrain.py for these
            attention_form="auto",
            layer_norm_form="auto",
            softmax_rows="tokens",
            loss_chunk=0,
            dtype="float32",
            layer_loop="unrolled",
            remat=False,
        ),
        custom=config_dict.create(  # only for the task "custom"
            name="",  # of the task, in tables and as its default folder
            head="",  # "classification", "similarity" or "multiple_choice"
            text=(),  # columns: a text or a pair; with choices, context (and question)
            # In place of `text`, a text of several columns, "{title} by {author}"; of a
            # pair, "FIRST ||| SECOND".
            template="",
            choices=(),  # columns of a multiple choice; a single column has a list
            label="label",  # the label's column
            labels=(),  # label names in order; empty: those of the training file
            score_range=(0.0, 0.0),  # lowest and highest score; 0,0: labels, not scores
            metrics=(),  # the first ranks checkpoints; empty: accuracy or pearson
        ),
        data=config_dict.create(
            # "tfds"; "hub": Parquet files of the Hugging Face Hub; "jsonl":
            # DIR/TASK/{train,dev,test}.jsonl; "official": the files as distributed by
            # their authors, under DIR; "babylm": those of BabyLM's evaluation,
            # DIR/TASK.{train,valid}.jsonl; "files": a custom task's own.
            source="files" if custom else "tfds",
            dir="",  # DIR; for tfds its data_dir, empty: TFDS' own default
            train="",  # a custom task's files: .jsonl, .json, .tsv, .csv or .parquet
            dev="",
            test="",
            max_train_examples=0,  # a random subset of this size; 0: all
            max_dev_examples=0,
            max_test_examples=0,
            max_seq_len=0,  # longest sequence in tokens; 0: the longest the model reads
            # Leave out longer training and dev examples instead of cutting them.
            skip_empty=False,  # True: passes over rows whose texts are all empty
            drop_long=False,
            # Batches are padded to the first of these lengths that fits.
            seq_len_buckets=(32, 64, 128, 256, 512),
            # In training, only attention sees padding: elsewhere, a batch is filled up
            # to one of a run's sizes, of which there are one for each length or at most
            # this many. 0: padding is left in.
            unpadded_sizes=16,
        ),
        head=config_dict.create(
            dropout=0.1,  # sec. 4.1, on the state at the extract token
            # Scores are learnt as "soft_labels" over whole numbers (helper functions of
            # the released code; 0 to 5 for STS-B) or by "regression".
            score_loss="soft_labels",
            aux_lm_weight=0.5,  # lambda of L3 = L2 + lambda L1 (eq. 5, sec. 4.1)
        ),
        optimizer=config_dict.create(
            name="released_adam",  # or one of optax: see configs/pretrain.py
            arguments="",
            learning_rate=6.25e-5,  # sec. 4.1
            b1=0.9,
            b2=0.999,
            eps=1e-8,
            weight_decay=0.01,
            clip_norm=1.0,
            schedule="linear",  # sec. 4.1
            warmup_steps=0,
            warmup_fraction=0.002,  # of all updates, sec. 4.1
            final_fraction=0.0,  # of learning_rate, where the schedule ends
        ),
        train=config_dict.create(
            num_epochs=3.0,  # sec. 4.1; each leaves out its last partial batch
            num_steps=0,  # updates, instead of epochs
            batch_size=32,  # examples over all devices, sec. 4.1
            accumulation_steps=0,  # parts of a batch; 0: the fewest that fit in memory
            max_nonfinite_steps=10,  # skipped updates in a row before the run stops
            matmul_precision="default",
            compilation_cache_dir="",
        ),
        mesh=config_dict.create(sharding="auto"),  # see configs/pretrain.py
        eval=config_dict.create(
            batch_size=64,  # examples
            # Evaluate after these updates of the first epoch, and at the end of every
            # epoch (released code).
            first_epoch_steps=(1000, 2000, 4000, 8000, 16000, 32000),
            # Random training examples to score at the end (Figure 2, left, dashed);
            # 0: none.
            train_examples=2000 if compare == "layer_transfer" else 0,
        ),
        checkpoint=config_dict.create(
            every_steps=1000,  # and after every evaluation
            every_minutes=0.0,  # at least this often by the clock, too; 0: never
            keep_latest=2,
            keep_best=1,  # by the task's first metric on the development split
        ),
        log=config_dict.create(
            every_steps=20,
            tensorboard=True,
            wandb=False,  # Weights & Biases, of the extra wandb
            profile_first_step=10,
            profile_steps=0,
        ),
        distributed=config_dict.create(  # see configs/pretrain.py
            initialization_seconds=300,
            heartbeat_seconds=100,
            shutdown_seconds=300,
            stuck_minutes=30.0,
        ),
        suite=config_dict.create(  # runs over several tasks, seeds or variants
            # What to compare on each task: "" nothing, "scratch" runs with and without
            # pre-training, or one of the analyses above.
            compare=compare,
            # ablations: the folder of a pre-trained LSTM, also read at `step`; empty:
            # no LSTM.
            lstm_init_from="",
            aux_lm_weights=(0.0, 0.25, 0.5, 1.0),  # aux_lm_weight: lambdas
            train_sizes=(1000, 4000, 16000, 0),  # aux_lm_weight: examples; 0: all
            keep_checkpoints=False,  # False: keep only predictions and scores
        ),
    )
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
