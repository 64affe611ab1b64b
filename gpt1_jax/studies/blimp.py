"""BLiMP's paradigms: names, fields, and how the first models and people did on them.

From Warstadt et al. 2020 (*BLiMP: The Benchmark of Linguistic Minimal Pairs for
English*, TACL 8; github.com/alexwarstadt/blimp at 3e56b06, CC-BY), the files
`raw_results/summary/models_summary.jsonl` and `human_validation_summary.csv`. The terms
are those of the former, which counts two paradigms of selection as argument structure.
The data has 1,000 pairs of each paradigm.
"""

from collections.abc import Mapping
from typing import NamedTuple

PUBLISHED = ("5-gram", "LSTM", "Transformer-XL", "GPT-2", "people")
FIELDS = ("morphology", "syntax", "semantics", "syntax_semantics")


class Paradigm(NamedTuple):
    """A kind of pair."""

    name: str
    term: str  # one of twelve phenomena
    field: str  # of linguistics, one of `FIELDS`
    published: Mapping[str, float]  # accuracy in points, by the names in `PUBLISHED`


# Name, field, and accuracies in the order of `PUBLISHED`, by term.
_TABLE = {
    "anaphor_agreement": """
    anaphor_gender_agreement morphology 43.9 88.2 91.2 99.4 96.0
    anaphor_number_agreement morphology 51.9 95.2 97.0 99.2 99.0
    """,
    "argument_structure": """
    animate_subject_passive syntax 70.3 71.5 74.3 76.6 86.0
    animate_subject_trans syntax 90.7 86.8 88.5 84.9 87.0
    causative syntax 53.5 68.4 57.5 78.2 98.0
    drop_argument syntax 71.6 78.9 70.3 80.7 86.9
    inchoative syntax 50.9 65.3 54.3 65.9 82.0
    intransitive syntax 67.8 78.5 67.2 84.2 90.0
    passive_1 syntax 89.2 71.9 80.6 89.3 95.0
    passive_2 syntax 82.2 72.5 80.9 90.2 86.0
    transitive syntax 70.8 64.7 75.8 86.0 99.0
    """,
    "binding": """
    principle_A_c_command syntax_semantics 57.8 58.8 60.8 73.7 86.0
    principle_A_case_1 syntax_semantics 100.0 100.0 100.0 100.0 98.0
    principle_A_case_2 syntax_semantics 48.9 87.3 95.3 94.8 96.0
    principle_A_domain_1 syntax_semantics 95.2 98.3 99.1 98.4 95.0
    principle_A_domain_2 syntax_semantics 56.4 68.3 69.7 77.5 75.0
    principle_A_domain_3 syntax_semantics 52.2 55.2 60.0 75.4 82.9
    principle_A_reconstruction syntax_semantics 40.4 46.4 37.9 46.8 78.0
    """,
    "control_raising": """
    existential_there_object_raising syntax_semantics 83.5 65.9 75.9 78.4 89.8
    existential_there_subject_raising syntax_semantics 77.4 79.5 78.7 91.1 88.0
    expletive_it_object_raising syntax_semantics 71.5 63.0 71.5 79.2 85.7
    tough_vs_raising_1 syntax_semantics 32.6 33.6 45.2 72.0 75.0
    tough_vs_raising_2 syntax_semantics 77.4 93.0 86.1 88.9 81.0
    """,
    "determiner_noun_agreement": """
    determiner_noun_agreement_1 morphology 88.3 91.8 91.7 98.8 95.8
    determiner_noun_agreement_2 morphology 86.3 91.9 81.1 97.7 94.9
    determiner_noun_agreement_irregular_1 morphology 85.4 81.5 88.3 95.7 92.0
    determiner_noun_agreement_irregular_2 morphology 90.4 86.0 81.6 95.3 85.0
    determiner_noun_agreement_with_adj_2 morphology 49.7 86.2 78.1 94.9 96.0
    determiner_noun_agreement_with_adj_irregular_1 morphology 53.0 76.2 80.8 92.7 93.8
    determiner_noun_agreement_with_adj_irregular_2 morphology 55.4 82.9 76.6 94.0 85.0
    determiner_noun_agreement_with_adjective_1 morphology 51.9 86.7 85.9 97.5 95.0
    """,
    "ellipsis": """
    ellipsis_n_bar_1 syntax 23.4 67.8 65.1 91.5 92.0
    ellipsis_n_bar_2 syntax 50.4 67.4 89.2 87.2 78.0
    """,
    "filler_gap_dependency": """
    wh_questions_object_gap syntax 52.7 79.4 60.7 84.2 85.0
    wh_questions_subject_gap syntax 82.0 91.5 82.5 95.6 98.0
    wh_questions_subject_gap_long_distance syntax 85.6 95.6 86.2 87.1 84.9
    wh_vs_that_no_gap syntax 82.5 96.9 86.4 96.8 97.0
    wh_vs_that_no_gap_long_distance syntax 81.0 97.3 91.2 93.8 91.9
    wh_vs_that_with_gap syntax 17.6 42.8 42.0 55.1 77.0
    wh_vs_that_with_gap_long_distance syntax 20.0 13.7 17.2 56.3 74.7
    """,
    "irregular_forms": """
    irregular_past_participle_adjectives morphology 79.4 92.8 90.5 97.7 99.0
    irregular_past_participle_verbs morphology 79.6 85.3 65.8 86.1 95.0
    """,
    "island_effects": """
    adjunct_island syntax 47.9 67.4 64.5 89.4 94.0
    complex_NP_island syntax 49.7 47.4 57.5 72.2 80.4
    coordinate_structure_constraint_complex_left_branch syntax 32.0 30.1 35.8 81.0 90.0
    coordinate_structure_constraint_object_extraction syntax 59.3 70.5 74.4 85.4 90.9
    left_branch_island_echo_question syntax 95.8 31.6 63.0 52.3 91.0
    left_branch_island_simple_question syntax 56.5 36.1 35.5 87.1 99.0
    sentential_subject_island syntax 60.5 42.8 36.5 35.5 60.6
    wh_island syntax 56.2 46.7 19.5 78.9 73.0
    """,
    "npi_licensing": """
    matrix_question_npi_licensor_present semantics 1.2 1.6 0.7 65.4 98.0
    npi_present_1 semantics 46.8 53.6 60.5 64.8 83.0
    npi_present_2 semantics 46.9 53.9 48.2 64.3 98.0
    only_npi_licensor_present semantics 56.6 92.9 79.8 94.5 92.0
    only_npi_scope syntax_semantics 29.8 36.4 45.3 78.5 72.0
    sentential_negation_npi_licensor_present semantics 92.7 100.0 98.8 97.1 92.8
    sentential_negation_npi_scope syntax_semantics 44.7 23.2 53.3 73.2 81.0
    """,
    "quantifiers": """
    existential_there_quantifiers_1 semantics 90.5 96.3 93.7 99.5 94.0
    existential_there_quantifiers_2 semantics 62.3 16.2 14.0 42.4 76.4
    superlative_quantifiers_1 semantics 44.7 62.8 84.3 87.0 91.0
    superlative_quantifiers_2 semantics 16.5 82.6 85.2 87.2 85.0
    """,
    "subject_verb_agreement": """
    distractor_agreement_relational_noun morphology 23.5 76.0 77.2 79.5 81.0
    distractor_agreement_relative_clause morphology 21.7 62.7 59.8 65.7 85.7
    irregular_plural_subject_verb_agreement_1 morphology 72.6 81.1 77.6 92.8 94.0
    irregular_plural_subject_verb_agreement_2 morphology 87.6 89.1 82.7 92.4 95.0
    regular_plural_subject_verb_agreement_1 morphology 75.5 89.0 73.1 96.7 95.0
    regular_plural_subject_verb_agreement_2 morphology 80.9 82.5 85.3 91.0 95.0
    """,
}


def _read_table() -> dict[str, Paradigm]:
    paradigms = {}
    for term, lines in _TABLE.items():
        for line in lines.strip().splitlines():
            name, field, *scores = line.split()
            published = dict(zip(PUBLISHED, map(float, scores), strict=True))
            paradigms[name] = Paradigm(name, term, field, published)
    return paradigms


PARADIGMS: Mapping[str, Paradigm] = _read_table()
TERMS = tuple(_TABLE)
