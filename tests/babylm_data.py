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


def write_evaluation_data(folder, count=6):
    """The folders full_eval and fast_eval with `count` items of each subset."""
    rng = random.Random(1)

    def phrase(length):
        return " ".join(rng.choices(WORDS, k=length))

    def pair(length, **more):
        both = {"sentence_good": phrase(length), "sentence_bad": phrase(length)}
        return {**both, **more}

    for chosen, ending in (("full_eval", "_filtered"), ("fast_eval", "_fast")):
        top = folder / chosen
        for name in ("adjunct_island", "principle_A_case_1"):
            about = {"UID": name, "field": "syntax", "linguistics_term": "x"}
            rows = [pair(4, **about) for _ in range(count)]
            rows[0]["sentence_bad"] = rows[0]["sentence_good"].upper()  # a tie
            write_lines(top / f"blimp{ending}" / f"{name}.jsonl", rows)
        rows = [pair(3) for _ in range(count)]
        write_lines(top / f"supplement{ending}" / "hypernym.jsonl", rows)
        about = {"ContextType": "a", "ContextDiff": "b", "TargetDiff": "c"}
        about["Domain"] = "agent-properties"
        rows = [
            {"Context1": phrase(5) + ".", "Context2": phrase(5) + "."}
            | {"Target1": phrase(3), "Target2": phrase(3), **about}
            for _ in range(count)
        ]
        write_lines(top / f"ewok{ending}" / "agent-properties.jsonl", rows)
        entity, splits = "entity_tracking", ("regular", "ambiref")
        if chosen == "fast_eval":
            entity, splits = "entity_tracking_fast", ("regular",)
        for split in splits:
            rows = [
                {"input_prefix": phrase(6) + " has ", "numops": number}
                | {"options": [phrase(2) + "." for _ in range(5)]}
                for number in (0, 1)
                for _ in range(count)
            ]
            write_lines(top / entity / f"{split}.jsonl", rows)
        for name in ("wug_adj_nominalization", "wug_past_tense"):
            rows = [
                {"sentences": f"{phrase(3)}\t{phrase(3)}", "ratio": rng.random()}
                for _ in range(count)
            ]
            write_lines(top / name / f"{name}.jsonl", rows)
        write_reading(top / "reading" / "reading_data.csv", rng, 2 * count)
    full = folder / "full_eval"
    for name in ("base", "wugs", "wugs_dist-before", "wugs_dist-in-between"):
        rows = [
            {"prefix_acceptable": f"a {phrase(1)}", "property_phrase": "can cab."}
            | {"prefix_unacceptable": f"a {phrase(2)}"}
            for _ in range(count)
        ]
        write_lines(full / "comps" / f"comps_{name}.jsonl", rows)
    words = {word: [{"context": phrase(4)} for _ in range(2)] for word in ("bed", "a")}
    (full / "aoa").mkdir()
    (full / "aoa" / "cdi_childes.json").write_text(json.dumps(words))


def write_reading(path, rng, sentences):
    """Words of sentences of six, each with the words before it."""
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(READING_COLUMNS)
        for _ in range(sentences):
            words = rng.choices(WORDS, k=6)
            for number in range(1, 6):
                word, before = words[number], words[number - 1]
                items = " ".join(words[:number]), word, " ".join(words[: number - 1])
                sizes = round(rng.uniform(1, 5), 3), len(word), number, len(before)
                times = [round(rng.uniform(200, 400), 1) for _ in READING_COLUMNS[8:]]
                if rng.random() < 0.1:
                    times[READING_COLUMNS.index("RTgopast") - 8] = ""
                writer.writerow([*items, before, *sizes, *times])
