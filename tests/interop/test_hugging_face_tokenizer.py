"""Exported tokenizers: the same ids, offsets and text as ours."""

import io
import itertools
import os
import unicodedata

import ftfy
import pytest
import sentencepiece
import tokenizers as hugging_face
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from made_up_tokenizer import Numbers, small_gpt1_tokenizer

from gpt1_jax.data.gpt1_tokenizer import standardize_text
from gpt1_jax.data.other_tokenizers import HuggingFaceTokenizer
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.tokenizers import load_tokenizer, special_tokens
from gpt1_jax.errors import UserError
from gpt1_jax.interop import hugging_face_tokenizer

few = settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

LINES = [
    "the quick brown fox jumps over a lazy dog while seven wizards mix potions",
    "she said nothing, walked home and never looked back again: the river's banks",
    "“don’t,” said the wizard — “the naïve café is closed; the dog knows!”",
] * 20

TEXTS = [
    "",
    " ",
    "   \t ",
    "\n",
    "\n\n the fox\t jumps \n",
    " the  quick   brown\tfox ",
    "The WIZARD’S café, NAÏVE Cafe\u0301 E\u0301 X\u0301 e\u0323\u0302",
    "🙂 the 👩‍👩‍👧 dog 日本 語 ﬁ ½ ² ＡＢ１ ～",
    "a\x00b\x01c\x7fd\u200be\u00adf\ufeffg",
    "\u2581the\u2581\u2581fox\u2581",
    "the\r\nfox\rjumps\u2028over\u0085a\u00a0dog\u3000now",
    "<unk> <0x41> </s>",
    "İSTANBUL ẞ ß Σας ΌΣΟΣ",
    "ﷺ ¨ ¯a",
    "Ж\u0301 ж\u0301",
    "각 \u1100\u1161\u11a8",
]

GPT1_TEXTS = [
    "",
    " \n ",
    "The dog. Don't bark,\n\n he said...\nNever!",
    "“It’s late” — said Mr. Fox…  naïve ﬁnance, 1,234.5 kg/m²; U.K. vs. U.S.A.",
    "日本 the",
    "<unk>",
]


def trained_elsewhere(**options) -> SentencePieceTokenizer:
    model = io.BytesIO()
    options |= {"user_defined_symbols": ["\n"], "minloglevel": 2}
    options |= {"sentence_iterator": iter(LINES), "model_writer": model}
    sentencepiece.SentencePieceTrainer.train(**options)
    return SentencePieceTokenizer(model.getvalue())


def given_file(entries=("\n", "a", "b", "[X]")):
    """The tokenizer of a file of the library that cuts texts after 4 tokens."""
    vocabulary = dict(zip(entries, range(len(entries)), strict=True))
    if "hole" in vocabulary:
        vocabulary["hole"] += 1
    rules = hugging_face.Tokenizer(hugging_face.models.BPE(vocabulary, []))
    rules.enable_truncation(4)
    return HuggingFaceTokenizer(rules.to_str(pretty=True).encode())


@pytest.fixture(scope="module")
def ours() -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(LINES, 560)


@pytest.fixture(scope="module")
def without_bytes() -> SentencePieceTokenizer:
    """And without required symbols."""
    ids = {"unk_id": 0, "bos_id": -1, "eos_id": -1, "pad_id": -1}
    ways = {"model_type": "bpe", "treat_whitespace_as_suffix": True}
    ways["normalization_rule_name"] = "nmt_nfkc_cf"
    return trained_elsewhere(vocab_size=150, **ways, **ids)


@pytest.fixture(scope="module")
def small_gpt1():
    return small_gpt1_tokenizer()


@pytest.fixture(scope="module")
def openai():
    if not os.environ.get("GPT1_OPENAI_BPE"):
        pytest.skip("GPT1_OPENAI_BPE does not name OpenAI's model/ folder")
    pytest.importorskip("spacy")
    return load_tokenizer(os.environ["GPT1_OPENAI_BPE"])


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """`export(tokenizer)`: it, as the `tokenizers` library reads it."""

    def make(tokenizer):
        folder = tmp_path_factory.mktemp("exported")
        hugging_face_tokenizer.write_tokenizer(tokenizer, folder, 512)
        return hugging_face.Tokenizer.from_file(str(folder / "tokenizer.json"))

    return make


@pytest.fixture(scope="module")
def for_transformers(tmp_path_factory):
    """`for_transformers(tokenizer, **options)`: it, as transformers reads it."""
    transformers = pytest.importorskip("transformers")

    def make(tokenizer, **options):
        folder = tmp_path_factory.mktemp("for_transformers")
        hugging_face_tokenizer.write_tokenizer(tokenizer, folder, 77, **options)
        (folder / "config.json").write_text('{"model_type": "openai-gpt"}')
        return transformers.AutoTokenizer.from_pretrained(folder)

    return make


@pytest.fixture(scope="module")
def exported(ours, export):
    return export(ours)


@pytest.fixture(scope="module")
def cased():
    return SentencePieceTokenizer.train([*LINES, *map(str.title, LINES)], 560, False)


@pytest.mark.parametrize(
    "kind", ["ours", "without_bytes", "cased", "small_gpt1", "openai"]
)
def test_ids_and_text_equal_ours(request, export, kind):
    ours = request.getfixturevalue(kind)
    theirs = export(ours)
    texts = [*TEXTS, *LINES[:3], "\n".join(LINES[:3]), "a 日本 b 語x日"]
    texts += map(str.title, LINES[:3])
    for text in texts if isinstance(ours, SentencePieceTokenizer) else GPT1_TEXTS:
        ids = ours.encode(text)
        assert theirs.encode(text).ids == ids
        assert theirs.decode(ids) == ours.decode(ids)
    capitals = ours.decode(ours.encode("The Fox"))
    assert capitals == ("The Fox" if kind == "cased" else "the fox")


# Where several accents meet, or one meets a letter that is itself mapped to another,
# the rules can differ; `tokenizer_limits` says so.
characters = st.characters(
    exclude_categories=["Cs", "Mn", "Mc", "Me"],
    exclude_characters="\uff9e\uff9f",  # marks in all but their category
)


@few
@given(text=st.text(characters | st.sampled_from("the fox \n\t\r\u2581")))
@example(text="\u2581 \ufffd\u00ad\x00 \r\n\u2028")
def test_sentencepiece_ids_of_any_text_equal_ours(ours, exported, text):
    lines = map(ours._processor.normalize, text.split("\n"))
    assume("\u2581" not in lines)  # nothing but control characters
    assert exported.encode(text).ids == ours.encode(text)


@few
@given(
    letter=st.sampled_from("aeoucnsAEOUCNS"), accent=st.characters(categories=["Mn"])
)
def test_sentencepiece_ids_of_accents_equal_ours(ours, exported, letter, accent):
    if unicodedata.normalize("NFKC", accent) == accent:
        text = f"the f{letter}{accent}x"
        assert exported.encode(text).ids == ours.encode(text)


@few
@given(ids=st.lists(st.integers(257, 559), max_size=12))
def test_sentencepiece_any_ids_decode_as_ours(ours, exported, ids):
    """Of all pieces but bytes, with bare markers before them, in two lines."""
    (marker,) = [i for i in range(560) if ours._processor.id_to_piece(i) == "\u2581"]
    ids = [marker, marker, *ids, ours.newline_id, marker, *ids]
    assert exported.decode(ids) == ours.decode(ids)


def test_sentencepiece_offsets_equal_those_of_sentencepiece(ours, exported):
    for text in LINES[:3]:
        starts = itertools.accumulate((len(c.encode()) for c in text), initial=0)
        place = {start: number for number, start in enumerate(starts)}
        pieces = ours._processor.encode(text, return_type="proto").pieces
        expected = [(place[piece.begin], place[piece.end]) for piece in pieces]
        assert exported.encode(text).offsets == expected


def test_a_file_of_the_library_goes_out_unchanged_but_for_a_head(tmp_path):
    """Which gets its special tokens."""
    ours, file = given_file(), tmp_path / "tokenizer.json"
    hugging_face_tokenizer.write_tokenizer(ours, tmp_path, 512)
    assert {"huggingface.json": file.read_bytes()} == ours._contents()
    hugging_face_tokenizer.write_tokenizer(ours, tmp_path, 512, for_head=True)
    rules = hugging_face.Tokenizer.from_file(str(file))
    start, delimiter, extract = special_tokens(ours.vocab_size)
    assert rules.encode("aba", "b").ids == [start, 1, 2, 1, delimiter, 2, extract]


@pytest.mark.parametrize(
    ("make", "use", "message"),
    [
        (lambda: trained_elsewhere(vocab_size=60), "", "without model_type=bpe, treat"),
        (Numbers, "", "kind 'numbers' cannot be written"),
        (given_file, "for_babylm", "Export steps one by one"),
        (lambda: given_file(["\n", "a", "hole"]), "for_head", "without entries"),
        (lambda: given_file(["\n", "<|start|>"]), "for_head", "one of them already"),
    ],
)
def test_a_tokenizer_that_cannot_go_out_is_refused(tmp_path, make, use, message):
    options = {use: True} if use else {}
    with pytest.raises(UserError, match=message):
        hugging_face_tokenizer.write_tokenizer(make(), tmp_path, 512, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["ours", "small_gpt1"])
def test_auto_tokenizer_reads_the_folder(request, for_transformers, kind):
    ours = request.getfixturevalue(kind)
    loaded = for_transformers(ours)
    assert loaded.is_fast and loaded.model_max_length == 77
    assert len(loaded) == ours.vocab_size
    for each in GPT1_TEXTS if kind == "small_gpt1" else TEXTS:
        ids = ours.encode(each)
        assert loaded(each)["input_ids"] == ids
        assert loaded.decode(ids) == ours.decode(ids)
    text = "The dog.\nDon't bark"
    offsets = loaded(text, return_offsets_mapping=True)["offset_mapping"]
    covered = {place for start, end in offsets for place in range(start, end)}
    assert {place for place, c in enumerate(text) if c != " "} <= covered


@pytest.fixture(scope="module")
def ours_for_babylm(ours, for_transformers):
    return for_transformers(ours, for_babylm=True)


@pytest.mark.parametrize("kind", ["ours", "small_gpt1"])
def test_texts_for_babylm_begin_with_a_newline(request, for_transformers, kind):
    tokenizer = request.getfixturevalue(kind)
    loaded = for_transformers(tokenizer, for_babylm=True)
    start = tokenizer.newline_id
    assert loaded.bos_token_id == loaded.pad_token_id == start
    assert loaded.eos_token_id is None and len(loaded) == tokenizer.vocab_size
    for text in GPT1_TEXTS if kind == "small_gpt1" else TEXTS:
        ids = tokenizer.encode(text)
        assert loaded(text)["input_ids"] == [start, *ids]
        assert loaded(text, add_special_tokens=False)["input_ids"] == ids
        pair = [start, *ids, start, *tokenizer.encode("the"), start]
        assert loaded(text, "the")["input_ids"] == pair
    first, *_, last = loaded("the", return_offsets_mapping=True)["offset_mapping"]
    assert first == (0, 0) and last[1] == 3
    one, two = loaded(["the", "the the"], padding=True)["attention_mask"]
    assert one == [1] * (len(two) // 2 + 1) + [0] * (len(two) // 2)


def test_decoded_texts_are_the_same_for_babylm(ours, ours_for_babylm):
    """Also of a text that stops within a word."""
    for text in (*TEXTS, *LINES[:3], "\n".join(LINES[:3])):
        ids = ours.encode(text)
        for shown in (ids, ids[:-1], [*ids, *ours.encode("wizar")[:-1]]):
            if len(shown) != 1:
                assert ours_for_babylm.decode(shown) == ours.decode(shown)


def test_each_token_alone_becomes_itself_again(ours, ours_for_babylm):
    """Behind a context, with or without a space between, and by itself."""

    def encode(text):
        return ours_for_babylm(text, add_special_tokens=False)["input_ids"]

    before = ours.encode("the fox")
    for token in range(258, ours.vocab_size):  # behind the newline and the bytes
        piece = ours._processor.id_to_piece(token)
        text = ours_for_babylm.decode(token)
        assert encode(text) == [token]
        assert encode("the fox " + text)[: len(before)] == before
        if not piece.endswith("\u2581"):
            assert encode("the fox" + text) == encode("the fox " + text)
            assert encode("the fox" + text) == [*before, token]
            words = *before, token, *ours.encode("the dog")
            assert encode(f"the fox{text} THE  dog") == [*words]
        else:
            assert ours_for_babylm.decode(token) == (ours.decode([token]) or "\ue002")


@pytest.mark.parametrize(
    ("context", "completion"),
    [("The Fox saw", " NA\u00cfVE  wizards"), ("\u201cno\u201d,", " cafe\u0301!")],
)
def test_the_scored_part_of_a_sentence_is_found(
    ours, ours_for_babylm, context, completion
):
    """By offsets, as the evaluation does: tokens that end behind the context."""
    text = context + completion
    read = ours_for_babylm(text, return_offsets_mapping=True)
    places = list(zip(read["input_ids"], read["offset_mapping"], strict=True))
    for start in (len(context), len(context) + 1):  # with and without the space
        scored = [token for token, (_, end) in places if end > start]
        assert scored == ours.encode(completion)
    assert not any(text[end - 1].isspace() for _, (_, end) in places[1:])


@pytest.mark.parametrize("kind", ["ours", "small_gpt1"])
def test_texts_of_fine_tuned_models_get_special_tokens(kind, request, for_transformers):
    tokenizer = request.getfixturevalue(kind)
    loaded = for_transformers(tokenizer, for_head=True)
    start, delimiter, extract = special_tokens(tokenizer.vocab_size)
    assert loaded.pad_token_id == start and len(loaded) == extract + 1
    the = tokenizer.encode("the")
    texts = GPT1_TEXTS if kind == "small_gpt1" else TEXTS
    for text in (*texts, "a<|extract|>b <|start|>"):
        ids = tokenizer.encode(text)
        assert loaded(text)["input_ids"] == [start, *ids, extract]
        assert loaded(text, add_special_tokens=False)["input_ids"] == ids
        pair = [start, *ids, delimiter, *the, extract]
        assert loaded(text, "the")["input_ids"] == pair
        assert loaded.decode(pair, skip_special_tokens=True).split() == (
            tokenizer.decode([*ids, *the]).split()
        )
    padded = loaded(["the", "the the"], padding=True)["input_ids"]
    assert padded[0] == [start, *the, extract, *[start] * len(the)]


@pytest.fixture(scope="module")
def words():
    """`words(text)`: by the rules."""
    pytest.importorskip("spacy")
    normalizer = hugging_face_tokenizer.words_normalizer()
    pre_tokenizer = hugging_face_tokenizer.words_pre_tokenizer()

    def cut(text):
        normal = normalizer.normalize_str(text)
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

    return cut


@pytest.fixture(scope="module")
def released_words():
    """`released_words(text)`: by ftfy and spaCy."""
    spacy = pytest.importorskip("spacy")
    split = spacy.blank("en").tokenizer

    def cut(text):
        found = split(standardize_text(ftfy.fix_text(text)))
        cut = [word.text.lower() for word in found]
        return ["\n" if word.startswith("\n") else word for word in cut]

    return cut


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't!", "do n't !"),
        ("I can't've, cannot, I'm", "i ca n't 've , can not , i 'm"),
        ("Mr. Fox's dog. 'Tis St. Ann.", "mr. fox 's dog . ' tis st. ann ."),
        ("goin' y'all 'em o'clock", "goin' y' all 'em o'clock"),
        ("Well...maybe ...then", "well ... maybe ... then"),
        ("“It’s”—‘so’… f´f", "\" it 's \" - ' so ' ... f'f"),
        (r"a\b U.S.A. A.", r"a\b u.s.a. a."),
        ("ﬁne ÉTÉ Ete\u0301", "fine été eté"),
        ('""No!!""', '" " no ! ! " "'),
        ("--''Tis ''so'' ''em ‘’Well", "-- '' tis '' so '' ' 'em '' well"),
    ],
)
def test_words_are_cut_as_expected(words, released_words, text, expected):
    assert words(text) == released_words(text) == expected.split()
    text = f" \n {text} \r\n\n\t{text}\u2028\n"  # each of which is one newline
    assert words(text) == released_words(text)


PROSE = """the Fox don't we're it's Mr. U.S. said I'd I well who'd gonna 10 3.5 cannot
 never. 'so' then' “yes” ‘no’ (and) wait... —stop— Home!"""


@settings(max_examples=50)
@given(st.lists(st.sampled_from(PROSE.split(" ")), max_size=8).map(" ".join))
def test_words_of_prose_equal_the_released(words, released_words, text):
    assert words(text) == released_words(text)
