"""Made-up data in the formats of BabyLM's evaluation."""

import csv
import json
import random

from tiny_tasks import write_lines

WORDS = ("ab", "cadge", "jab", "bed", "high", "cab", "fad", "gig", "head", "jig")
READING_COLUMNS = (
    *("item", "word", "prev_item", "prev_word", "Subtlex_log10", "length"),
    *("context_length", "prev_length", "RTfirstfix", "RTfirstpass", "RTgopast"),
    *("RTrightbound", "self_paced_reading_time"),
)


def phrase(rng, count):
    return " ".join(rng.choices(WORDS, k=count))


def write_evaluation_data(folder, count=6):
    """The folders full_eval and fast_eval with `count` items of each subset."""
    rng = random.Random(1)
    for chosen, ending in (("full_eval", "_filtered"), ("fast_eval", "_fast")):
        top = folder / chosen
        for name in ("adjunct_island", "principle_A_case_1"):
            rows = [
                {"sentence_good": phrase(rng, 4), "sentence_bad": phrase(rng, 4)}
                | {"UID": name, "field": "syntax", "linguistics_term": "x"}
                for _ in range(count)
            ]
            rows[0]["sentence_bad"] = rows[0]["sentence_good"].upper()  # a tie
            write_lines(top / f"blimp{ending}" / f"{name}.jsonl", rows)
        rows = [
            {"sentence_good": phrase(rng, 3), "sentence_bad": phrase(rng, 3)}
            for _ in range(count)
        ]
        write_lines(top / f"supplement{ending}" / "hypernym.jsonl", rows)
        rows = [
            {"Context1": phrase(rng, 5) + ".", "Context2": phrase(rng, 5) + "."}
            | {"Target1": phrase(rng, 3), "Target2": phrase(rng, 3)}
            | {"ContextType": "a", "ContextDiff": "b", "TargetDiff": "c"}
            | {"Domain": "agent-properties"}
            for _ in range(count)
        ]
        write_lines(top / f"ewok{ending}" / "agent-properties.jsonl", rows)
        entity = "entity_tracking" + ("_fast" if chosen == "fast_eval" else "")
        for split in ("regular",) if "fast" in entity else ("regular", "ambiref"):
            rows = [
                {"input_prefix": phrase(rng, 6) + " has ", "numops": number}
                | {"options": [phrase(rng, 2) + "." for _ in range(5)]}
                for number in (0, 1)
                for _ in range(count)
            ]
            write_lines(top / entity / f"{split}.jsonl", rows)
        for name in ("wug_adj_nominalization", "wug_past_tense"):
            rows = [
                {"sentences": f"{phrase(rng, 3)}\t{phrase(rng, 3)}"}
                | {"ratio": rng.random()}
                for _ in range(count)
            ]
            write_lines(top / name / f"{name}.jsonl", rows)
        write_reading(top / "reading" / "reading_data.csv", rng, 10 * count)
    for name in ("base", "wugs", "wugs_dist-before", "wugs_dist-in-between"):
        rows = [
            {"prefix_acceptable": f"a {phrase(rng, 1)}", "property_phrase": "can cab."}
            | {"prefix_unacceptable": f"a {phrase(rng, 1)} {phrase(rng, 1)}"}
            for _ in range(count)
        ]
        write_lines(folder / "full_eval" / "comps" / f"comps_{name}.jsonl", rows)
    words = {
        word: [{"context": phrase(rng, 4)} for _ in range(2)] for word in ("bed", "a")
    }
    path = folder / "full_eval" / "aoa" / "cdi_childes.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(words))


def write_reading(path, rng, count):
    """Words of sentences of six, each with the words before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, READING_COLUMNS)
        writer.writeheader()
        for _ in range(count // 5):
            words = rng.choices(WORDS, k=6)
            for number in range(1, 6):
                before = " ".join(words[: number - 1])
                row = {
                    "item": " ".join(words[:number]),
                    "word": words[number],
                    "prev_item": before,
                    "prev_word": words[number - 1],
                    "Subtlex_log10": round(rng.uniform(1, 5), 3),
                    "length": len(words[number]),
                    "context_length": number,
                    "prev_length": len(words[number - 1]),
                }
                times = {
                    n: round(rng.uniform(200, 400), 1) for n in READING_COLUMNS[8:]
                }
                if rng.random() < 0.1:
                    times["RTgopast"] = ""
                writer.writerow({**row, **times})
