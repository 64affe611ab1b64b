"""Fine-tunes on a table with transformers' Trainer, as its users write it.

    python -m benchmarks.peers.trainer MODEL TRAIN TEST FOLDER --rate=6e-4 --seed=0

The peer of `benchmarks.peers.own_table`: class weights, the checkpoint with the best
macro F1 on a tenth of the training rows, scores and labels of the test rows.
"""

import argparse
from pathlib import Path

import pandas as pd
import torch
from sklearn.metrics import classification_report, f1_score
from sklearn.model_selection import train_test_split
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("train")
parser.add_argument("test")
parser.add_argument("folder", type=Path)
parser.add_argument("--rate", type=float, default=6e-4)
parser.add_argument("--seed", type=int, default=0)
flags = parser.parse_args()

tables = {"train": pd.read_csv(flags.train), "test": pd.read_csv(flags.test)}
tables["train"], tables["dev"] = train_test_split(
    tables["train"], test_size=0.1, stratify=tables["train"]["label"], random_state=0
)
names = sorted(tables["train"]["label"].unique())
numbers = {name: number for number, name in enumerate(names)}

tokenizer = AutoTokenizer.from_pretrained(flags.model)
tokenizer.add_special_tokens({"pad_token": "[PAD]"})
model = AutoModelForSequenceClassification.from_pretrained(
    flags.model, num_labels=len(names), id2label=dict(enumerate(names))
)
model.resize_token_embeddings(len(tokenizer))
model.config.pad_token_id = tokenizer.pad_token_id


def encode(table):
    longest = model.config.n_positions
    texts = tokenizer(list(table["text"]), truncation=True, max_length=longest)
    return [
        {"input_ids": ids, "labels": numbers[label]}
        for ids, label in zip(texts["input_ids"], table["label"], strict=True)
    ]


counts = tables["train"]["label"].map(numbers).value_counts().sort_index()
weights = torch.tensor((counts.sum() / (len(names) * counts)).values)


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = weights.to(outputs.logits)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight)
        return (loss, outputs) if return_outputs else loss


def macro_f1(found):
    predictions = found.predictions.argmax(axis=1)
    return {"macro_f1": f1_score(found.label_ids, predictions, average="macro")}


trainer = WeightedTrainer(
    model=model,
    args=TrainingArguments(
        output_dir=str(flags.folder),
        num_train_epochs=3,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=flags.rate,
        weight_decay=0.01,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="macro_f1",
        report_to=[],
        seed=flags.seed,
    ),
    train_dataset=encode(tables["train"]),
    eval_dataset=encode(tables["dev"]),
    processing_class=tokenizer,
    compute_metrics=macro_f1,
)
trainer.train()
logits = torch.tensor(trainer.predict(encode(tables["test"])).predictions)
labels = [names[number] for number in logits.argmax(dim=1)]
print(classification_report(tables["test"]["label"], labels, digits=3, zero_division=0))
table = tables["test"].assign(prediction=labels)
for number, name in enumerate(names):
    table[f"P({name})"] = logits.softmax(dim=1)[:, number]
table.to_csv(flags.folder / "labels.csv", index=False)
trainer.save_model(flags.folder / "best")
