"""The tasks of BabyLM 2026's evaluation that need no training, as its files have them.

Formats, wording, names and numbers of items are those of babylm-org/babylm-eval at
45fe2c1, folder strict. Its data is `evaluation_data`, with `full_eval` for the last
checkpoint and the smaller `fast_eval` for every milestone.
"""

import collections
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.data.records import (
    parse_number,
    read_number,
    read_rows,
    require_column,
)
from gpt1_jax.data.text import brief
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import ReadingWindow, content_digest
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.studies.answers import (
    CANDIDATES,
    Answers,
    AnswersTask,
    ContextWindows,
    encode_answers,
)
from gpt1_jax.tasks.examples import check_records, read_records
from gpt1_jax.tasks.task import Inputs, Published, Record, Target, Task

FULL, FAST = "full", "fast"
READING, AOA = "reading", "aoa"
_ITEMS = "test"
_LABEL = "(the right one)"  # a column that no file has

EYE_TRACKING = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
SELF_PACED = "self_paced_reading_time"
READING_PREDICTORS = ("Subtlex_log10", "length", "context_length", "prev_length")


class Part(NamedTuple):
    """A part of the evaluation: one entry of a submission."""

    name: str  # the entry
    full: str  # its folder or file in the full set; "" if it has none there
    fast: str  # the same of the fast set
    sizes: Mapping[str, int]  # items of each subset that a submission needs: full set
    fast_sizes: Mapping[str, int]  # the same of the fast set
    task: str = ""  # as the pipeline calls it, if not by its name

    @property
    def pipeline_task(self) -> str:
        """Its name in the pipeline, which has some parts in one task."""
        return self.task or self.name

    @property
    def folders(self) -> dict[str, str]:
        """Its folder or file, by set."""
        by_set = {FULL: self.full, FAST: self.fast}
        return {chosen: folder for chosen, folder in by_set.items() if folder}


def _sizes(text: str) -> dict[str, int]:
    pairs = (item.split(":") for item in text.split())
    return {name: int(size) for name, size in pairs}


_BLIMP = _sizes("""
    superlative_quantifiers_2:986 superlative_quantifiers_1:979
    anaphor_gender_agreement:971 principle_a_reconstruction:967
    irregular_past_participle_adjectives:961 sentential_subject_island:961
    wh_island:960 left_branch_island_simple_question:951
    coordinate_structure_constraint_object_extraction:949 tough_vs_raising_1:948
    left_branch_island_echo_question:947 principle_a_c_command:946
    regular_plural_subject_verb_agreement_2:945 irregular_past_participle_verbs:942
    determiner_noun_agreement_with_adj_2:941 principle_a_domain_3:941
    determiner_noun_agreement_with_adjective_1:933 anaphor_number_agreement:931
    determiner_noun_agreement_2:931 existential_there_quantifiers_1:930
    determiner_noun_agreement_1:929 matrix_question_npi_licensor_present:929
    adjunct_island:928 existential_there_subject_raising:924 animate_subject_trans:923
    drop_argument:920 tough_vs_raising_2:920 wh_vs_that_with_gap:919
    sentential_negation_npi_licensor_present:919 principle_a_case_2:915
    principle_a_domain_2:915 principle_a_domain_1:914 npi_present_2:914
    principle_a_case_1:912 existential_there_quantifiers_2:911
    wh_vs_that_with_gap_long_distance:910 npi_present_1:909
    coordinate_structure_constraint_complex_left_branch:906 passive_2:903
    wh_questions_subject_gap:898 animate_subject_passive:895
    irregular_plural_subject_verb_agreement_2:892
    regular_plural_subject_verb_agreement_1:890 only_npi_licensor_present:882
    wh_vs_that_no_gap_long_distance:875 distractor_agreement_relative_clause:871
    sentential_negation_npi_scope:871 intransitive:868 transitive:868
    wh_vs_that_no_gap:861 wh_questions_object_gap:859
    wh_questions_subject_gap_long_distance:857 inchoative:855 complex_np_island:846
    passive_1:840 determiner_noun_agreement_with_adj_irregular_2:840
    only_npi_scope:837 ellipsis_n_bar_2:828 determiner_noun_agreement_irregular_2:820
    causative:818 existential_there_object_raising:812
    irregular_plural_subject_verb_agreement_1:804 ellipsis_n_bar_1:802
    distractor_agreement_relational_noun:788 expletive_it_object_raising:759
    determiner_noun_agreement_with_adj_irregular_1:718
    determiner_noun_agreement_irregular_1:681
""")
_SUPPLEMENT = _sizes("""
    hypernym:842 qa_congruence_easy:64 qa_congruence_tricky:165
    subject_aux_inversion:3867 turn_taking:280
""")
_ENTITY = _sizes("""
    regular_0_ops:606 regular_1_ops:607 regular_2_ops:606 regular_3_ops:606
    regular_4_ops:568 regular_5_ops:159 ambiref_0_ops:607 ambiref_1_ops:607
    ambiref_2_ops:604 ambiref_3_ops:604 ambiref_4_ops:615 ambiref_5_ops:187
    move_contents_0_ops:605 move_contents_1_ops:606 move_contents_2_ops:605
    move_contents_3_ops:606 move_contents_4_ops:529 move_contents_5_ops:156
""")
_EWOK = _sizes("""
    agent-properties:2210 social-relations:1548 physical-relations:818
    material-dynamics:770 physical-interactions:556 spatial-relations:490
    social-properties:328 quantitative-properties:314 social-interactions:294
    material-properties:170 physical-dynamics:120
""")
_COMPS = _sizes("""
    base:49340 wugs_dist_before:13896 wugs_dist_in_between:13896 wugs:13896
""")
_REGULAR = {name: size for name, size in _ENTITY.items() if name.startswith("regular")}
_WUG_ADJ, _WUG_PAST = "wug_adj_nominalization", "wug_past_tense"
_READING_DATA = "reading/reading_data.csv"

_PARTS = (
    Part("blimp", "blimp_filtered", "blimp_fast", _BLIMP, dict.fromkeys(_BLIMP, 200)),
    Part(
        "blimp_supplement",
        "supplement_filtered",
        "supplement_fast",
        _SUPPLEMENT,
        dict.fromkeys(_SUPPLEMENT, 50),
        "blimp",
    ),
    Part("ewok", "ewok_filtered", "ewok_fast", _EWOK, dict.fromkeys(_EWOK, 100)),
    Part(
        "entity_tracking", "entity_tracking", "entity_tracking_fast", _ENTITY, _REGULAR
    ),
    Part("wug_adj", _WUG_ADJ, _WUG_ADJ, {"wug_adj": 200}, {"wug_adj": 200}),
    Part("wug_past", _WUG_PAST, _WUG_PAST, {"wug_past": 50}, {"wug_past": 50}),
    Part("comps", "comps", "", _COMPS, {}),
    Part(READING, _READING_DATA, _READING_DATA, {READING: 1726}, {READING: 1726}),
    # Words at every milestone; its file is in the full set alone.
    Part(AOA, "", "aoa/cdi_childes.json", {}, {AOA: 8005}, "AoA_word"),
)
PARTS: Mapping[str, Part] = {part.name: part for part in _PARTS}

# The checkpoints of the first hundred million words.
_SHORT = [f"chck_{i}M" for i in (*range(1, 10), *range(10, 101, 10))]
REVISIONS: Mapping[str, Sequence[str]] = {  # that a submission needs, by track
    "strict-small": _SHORT,
    "strict": [*_SHORT, *(f"chck_{i}M" for i in range(200, 1001, 100))],
}


class WordItems(NamedTuple):
    """Words that are each scored after a context: the items of reading and of AoA."""

    part: str
    rows: list[dict[str, Any]]  # the facts about each item
    all_windows: list[ReadingWindow]
    numbers: list[Sequence[int]]  # the windows of each item

    def content_digest(self) -> str:
        """The content digest of the rows and of the tokens."""
        parts: list[str | list[int]] = []
        for row, numbers in zip(self.rows, self.numbers, strict=True):
            parts.append(json.dumps(row, sort_keys=True))
            parts += [self.all_windows[number].content for number in numbers]
        return content_digest(parts)


Items = Answers | WordItems


def subset_sizes(items: Items | None) -> Mapping[str, int]:
    """How many items each subset has; nothing of no items."""
    if isinstance(items, WordItems):
        return {items.part: len(items.rows)}
    return collections.Counter(
        each.subset for each in (items.examples if items else ())
    )


def load_part(
    part: Part, chosen: str, data: epath.Path, tokenizer: Tokenizer, max_seq_len: int
) -> Items:
    """Reads the items of a part and encodes them.

    Args:
      part: one of `PARTS`.
      chosen: `FULL` or `FAST`.
      data: the folder `evaluation_data`.
      tokenizer: the model's tokenizer.
      max_seq_len: the most tokens that the model reads.

    Raises:
      MissingData: if the part's folder or file does not exist.
      UserError: naming file and line of an item that cannot be used.
    """
    held = FULL if part.name == AOA else chosen
    place = data / f"{held}_eval" / part.folders[chosen]
    if not place.exists():
        raise MissingData(
            f"{place} does not exist; config.data.dir must be the pipeline's folder "
            "evaluation_data, unpacked."
        )
    if part.name in (READING, AOA):
        read = _read_reading if part.name == READING else _read_aoa
        words = read(place, tokenizer)
        if not words.rows:
            raise MissingData(f"{place} holds no words.")
        return words
    task = _sentence_task(part)
    files = sorted(path for path in place.iterdir() if path.suffix == ".jsonl")
    records = (
        record._replace(subset=path.stem)
        for path in files
        for record in read_records(path)
    )
    examples = check_records(task.task, records, needs_label=True)
    if not examples:
        raise MissingData(f"{place} holds no .jsonl file with items.")
    # Items of one subset side by side, in the order of their file.
    examples.sort(key=lambda each: each.subset)
    return encode_answers(task, _ITEMS, examples, tokenizer, max_seq_len)


# --- sentences --------------------------------------------------------------------


def _sentence_task(part: Part) -> AnswersTask:
    """How the items of a part become a context that is read and text that is scored."""
    kinds: Mapping[str, tuple[Callable[[Record], Record], str, str]] = {
        "blimp": (_blimp, "", "{answer}"),
        "ewok": (_ewok, "{context}", "{answer}"),
        "entity_tracking": (_entity_tracking, "{context}", "{answer}"),
        "wug_adj": (functools.partial(_wug, part.name), "", "{answer}"),
        "wug_past": (functools.partial(_wug, part.name), "", "{answer}"),
        "comps": (_comps, "{answer} ", "{context}"),
    }
    prepare, context, scored = kinds[part.pipeline_task]
    task = Task(
        name=part.name,
        title=part.name,
        inputs=Inputs(
            transform="multiple_choice",
            text=("context", "ratio"),
            choices=("answers",),
            fewer_choices=True,
            may_be_empty="all",  # a context; an empty answer is refused all the same
        ),
        target=Target(labels=CANDIDATES, column=_LABEL),
        published=Published(prepare=prepare),
    )
    return AnswersTask(task, scored, context, mean=False, splits=(_ITEMS,), cut=False)


def _item(
    record: Record, answers: list[Any], subset: str, context: Any = "", ratio: str = ""
) -> Record:
    """A record of which the first answer is right."""
    columns = {"context": context, "answers": answers, _LABEL: 0, "ratio": ratio}
    return record._replace(columns=columns, subset=subset)


def _cells(record: Record, *names: str) -> list[Any]:
    return [require_column(record.columns, name, record.where) for name in names]


def _blimp(record: Record) -> Record:
    """BLiMP, and its supplement, whose files name the subset."""
    subset = record.columns.get("UID", record.subset)
    return _item(record, _cells(record, "sentence_good", "sentence_bad"), str(subset))


def _ewok(record: Record) -> Record:
    context, first, second, domain = _cells(
        record, "Context1", "Target1", "Target2", "Domain"
    )
    return _item(record, [f" {first}", f" {second}"], str(domain), context)


def _entity_tracking(record: Record) -> Record:
    prefix, options, number = _cells(record, "input_prefix", "options", "numops")
    return _item(record, options, f"{record.subset}_{number}_ops", prefix)


def _wug(name: str, record: Record) -> Record:
    """Two forms of a made-up word; `ratio` is people's share of the first."""
    sentences, ratio = _cells(record, "sentences", "ratio")
    share = parse_number(ratio)
    if math.isnan(share) or not isinstance(sentences, str):
        raise UserError(
            f"{record.where}: columns 'sentences' and 'ratio' hold {brief(sentences)} "
            f"and {brief(ratio)}, not two sentences with a tab between them and a "
            "number."
        )
    return _item(record, sentences.split("\t"), name, ratio=repr(share))


def _comps(record: Record) -> Record:
    """Two concepts before one property, of which only the property is scored."""
    good, bad, phrase = _cells(
        record, "prefix_acceptable", "prefix_unacceptable", "property_phrase"
    )
    name = record.subset.removeprefix("comps_").replace("-", "_")
    return _item(record, [good, bad], name, phrase)


def chosen_text(answers: Answers, number: int, choice: int) -> str:
    """The prediction for an item, as a submission states it."""
    example = answers.examples[number]
    text = example.choices[choice]
    is_comps = answers.task.task.name == "comps"
    return f"{text} {example.text[0]}" if is_comps else text


# --- words ------------------------------------------------------------------------


def _read_reading(path: epath.Path, tokenizer: Tokenizer) -> WordItems:
    """Words of sentences that people read, and the word before each."""
    windows = ContextWindows(tokenizer)
    rows: list[dict[str, Any]] = []
    numbers: list[Sequence[int]] = []
    measured = (*EYE_TRACKING, SELF_PACED, *READING_PREDICTORS)
    for where, cells in read_rows(path, "csv"):
        record = Record(cells, where)
        item, word, before, word_before = _cells(
            record, "item", "word", "prev_item", "prev_word"
        )
        rows.append({name: read_number(cells, name, where) for name in measured})
        own = [windows.add(item, word, where)]
        if before.strip():
            own.append(windows.add(before, word_before, where))
        numbers.append(own)
    return WordItems(READING, rows, windows.windows, numbers)


def _read_aoa(path: epath.Path, tokenizer: Tokenizer) -> WordItems:
    """Words that children learn, each in several contexts."""
    windows = ContextWindows(tokenizer)
    rows: list[dict[str, Any]] = []
    numbers: list[Sequence[int]] = []
    for word, number, context in _aoa_contexts(path):
        rows.append({"target_word": word, "context_id": number, "context": context})
        numbers.append([windows.add(context, word, str(path))])
    return WordItems(AOA, rows, windows.windows, numbers)


def _aoa_contexts(path: epath.Path) -> Iterator[tuple[str, int, str]]:
    """Words of more than one letter, their contexts, and the numbers of these."""
    try:
        words = json.loads(path.read_text("utf-8"))
        for word, contexts in words.items():
            if len(word) > 1:
                for number, each in enumerate(contexts):
                    if not isinstance(context := each["context"], str):
                        raise TypeError(f"context {number} of {word!r:.40}: {context}")
                    yield word, number, context
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not an object of words, each with a list of contexts: "
            f"{error!r:.80}."
        ) from error
