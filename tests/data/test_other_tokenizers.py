"""Tokenizers that other programs saved: found, read, and told from our own."""

import io
import json

import pytest
import sentencepiece
import tokenizers
from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from gpt1_jax.data import other_tokenizers
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.data.words import encode_line, encode_whole, lines_of, split_words
from gpt1_jax.errors import UserError

LINES = [
    "the quick brown fox jumps over a lazy dog while seven wizards mix potions",
    "She said nothing, walked home and never looked back again: the river's banks",
    "the naïve dog knows (don't say more!) that the café is closed",
] * 5
TEXTS = [*LINES[:3], "", "Zebra 漢字 🙂 (the  café)", "the [CLS] and <|endoftext|>"]


def word_ends():
    rules = tokenizers.Tokenizer(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    )
    rules.normalizer = normalizers.Lowercase()
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.decoder = decoders.BPEDecoder(suffix="</w>")
    return rules, trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<unk>", "</s>"], end_of_word_suffix="</w>"
    )


def word_piece():
    rules = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    rules.normalizer = normalizers.BertNormalizer()
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    return rules, trainers.WordPieceTrainer(vocab_size=120, special_tokens=names)


def unigram():
    rules = tokenizers.Tokenizer(models.Unigram())
    rules.normalizer = normalizers.NFKC()
    rules.pre_tokenizer = pre_tokenizers.Metaspace()
    rules.decoder = decoders.Metaspace()
    return rules, trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>", "</s>"], unk_token="<unk>"
    )


KINDS = {  # what stands for the newline, whether it lower-cases
    "byte_level": ("Ċ", False),
    "word_ends": ("</s>", True),
    "word_piece": ("[SEP]", True),
    "unigram": ("</s>", False),
}


@pytest.fixture(scope="module")
def trained(byte_level):
    made = {"byte_level": byte_level}
    for make in (word_ends, word_piece, unigram):
        made[make.__name__], trainer = make()
        trainer.show_progress = False
        made[make.__name__].train_from_iterator(LINES, trainer)
    return made


def ours_of(rules):
    content = rules.to_str().encode()
    return other_tokenizers.HuggingFaceTokenizer(content)


@pytest.fixture
def write(tmp_path):
    """`write(rules)`: a tokenizer.json; `change` edits it."""

    def write(rules, change=lambda values: None):
        values = json.loads(rules.to_str())
        change(values)
        (tmp_path / "tokenizer.json").write_text(json.dumps(values))
        return tmp_path / "tokenizer.json"

    return write


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library_whatever_the_file_asks_for(trained, kind):
    rules, (newline, lowercase) = trained[kind], KINDS[kind]
    asking = tokenizers.Tokenizer.from_str(rules.to_str())
    asking.enable_truncation(3)
    asking.enable_padding(length=40)
    if isinstance(asking.model, models.BPE):
        asking.model.dropout = 0.9
    first = rules.id_to_token(0)
    asking.post_processor = processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, 0)]
    )
    ours = ours_of(asking)
    for text in TEXTS:
        assert ours.encode(text) == rules.encode(text, add_special_tokens=False).ids
    assert ours.vocab_size == rules.get_vocab_size()
    assert rules.id_to_token(ours.newline_id) == newline
    assert ours.lowercase == lowercase
    lines = [ours.encode(text) for text in TEXTS]
    joined = [token for ids in lines for token in (ours.newline_id, *ids)][1:]
    assert ours.encode("\n".join(TEXTS)) == joined
    text = "the lazy dog\n\nthe fox"
    assert ours.decode(ours.encode(text)) == text
    assert ours.decode([0]) == first  # a special token is text


@pytest.mark.parametrize("kind", KINDS)
def test_words_have_the_tokens_that_they_have_in_their_line(trained, kind):
    ours = ours_of(trained[kind])
    words = list(split_words(ours, lines_of("\n".join(LINES[:3]), "text")))
    for number, line in enumerate(LINES[:3], 1):
        of_words = [i for word in words if word.line == number for i in word.ids]
        assert of_words == ours.encode(line)
    # Word by word, as in a table.
    cells = [word._replace(ids=()) for word in words]
    assert [word.ids for word in encode_whole(ours, cells)] == [w.ids for w in words]
    whole = ours.encode("the lazy dog")
    for context, scored in (("the ", "lazy dog"), ("the", " lazy dog")):
        line = encode_line(context, scored, ours.encode)
        assert (line.ids, line.num_context) == (whole, len(ours.encode("the")))


def test_ids_without_an_entry_are_rows_that_no_text_has(trained, write):
    rules = trained["word_piece"]
    far = rules.get_vocab_size() + 5
    path = write(rules, lambda values: values["model"]["vocab"].update(far=far))
    assert load_tokenizer(path).vocab_size == far + 1


def test_a_token_across_a_space_is_refused_where_words_are_scored():
    vocabulary = {"a": 0, " ": 1, "b": 2, "a ": 3, "\n": 4}
    model = models.BPE(vocabulary, [("a", " ")])
    ours = ours_of(tokenizers.Tokenizer(model))
    (line,) = lines_of("b b", "text")
    assert [word.ids for word in split_words(ours, [line])] == [(2,), (1, 2)]
    with pytest.raises(UserError, match=r"^text:1: a token of this model reaches from"):
        list(split_words(ours, lines_of("a b", "text")))


def test_a_saved_tokenizer_carries_its_file_unchanged(trained, write, tmp_path):
    path = write(trained["word_piece"])
    for place in (path, tmp_path):
        assert load_tokenizer(place).kind == "huggingface"
    saved = tmp_path / "saved"
    load_tokenizer(path).save(saved)
    assert (saved / "huggingface.json").read_bytes() == path.read_bytes()
    again = load_tokenizer(saved)
    assert again.digest == load_tokenizer(path).digest
    assert again.encode(TEXTS[0]) == load_tokenizer(path).encode(TEXTS[0])


def without_ends(values):
    values["added_tokens"] = []
    del values["model"]["vocab"]["[SEP]"]


PANIC = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda values: values["model"].update(unk_token="none"),
            "has no token for unknown characters .*unk_token",
        ),
        (without_ends, r"has no newline and none of .*\[SEP\].*add_special_tokens"),
        (
            lambda values: values["model"]["vocab"].update(far=10**6),
            "ids up to 1,000,001; number them from 0 on",
        ),
        (lambda values: values.update(model={"type": "?"}), "cannot be loaded: "),
        (lambda values: values.update(normalizer=PANIC), "be loaded: Precompiled: "),
    ],
)
def test_what_cannot_be_a_tokenizer_is_refused(trained, write, change, message):
    path = write(trained["word_piece"], change)
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(("rules.json", "rules.json"), ("tokenizer.json", "."), ("any.model", ".")),
        *(("vocab_40000.bpe", "."), ("sentencepiece.model", ".")),
    ],
)
def test_a_git_lfs_pointer_is_called_that(
    tmp_path, sentencepiece_tokenizer, lfs_pointer, name, place
):
    if name == "sentencepiece.model":  # of a tokenizer that we saved: not damaged
        sentencepiece_tokenizer.save(tmp_path)
    (tmp_path / name).write_bytes(lfs_pointer)
    with pytest.raises(UserError, match=f"{name} is a Git LFS pointer, .* lfs pull"):
        load_tokenizer(tmp_path / place)


def test_one_file_given_for_the_other_is_told_apart(tmp_path, sentencepiece_tokenizer):
    saved, other = tmp_path / "saved", tmp_path / "vocab.json"
    sentencepiece_tokenizer.save(saved)
    with pytest.raises(UserError, match=r"that gpt1_jax saved: name .*/saved\.$"):
        load_tokenizer(saved / "tokenizer.json")
    other.write_text('{"model": 3}')
    with pytest.raises(UserError, match=r"neither a tokenizer\.json of the `tokenizer"):
        other_tokenizers.find(other)


def test_a_sentencepiece_model_is_read_as_its_file_or_in_a_folder(
    tmp_path, sentencepiece_tokenizer
):
    (content,) = sentencepiece_tokenizer._contents().values()
    path = tmp_path / "m.model"
    path.write_bytes(content)
    for place in (path, tmp_path):
        assert load_tokenizer(place).digest == sentencepiece_tokenizer.digest
    (tmp_path / "second.model").touch()
    with pytest.raises(UserError, match=r"holds 2 \.model files; name one"):
        load_tokenizer(tmp_path)


def test_a_saved_tokenizer_without_its_description_is_damaged(
    tmp_path, trained, write, sentencepiece_tokenizer
):
    for ours in (sentencepiece_tokenizer, load_tokenizer(write(trained["unigram"]))):
        saved = tmp_path / ours.kind
        ours.save(saved)
        (saved / "tokenizer.json").unlink()
        with pytest.raises(UserError, match=r"lacks tokenizer\.json, .*: put it back"):
            load_tokenizer(saved)
        (file,) = saved.iterdir()
        assert other_tokenizers.find(file)[0] == ours.kind
        assert load_tokenizer(file).digest == ours.digest


@pytest.mark.parametrize(
    ("options", "newline", "lowercase"),
    [
        ({}, "</s>", False),
        ({"user_defined_symbols": ["\n"]}, "\n", False),
        ({"byte_fallback": True, "vocab_size": 310}, "<0x0A>", False),
        ({"normalization_rule_name": "nmt_nfkc_cf"}, "</s>", True),
        ({"add_dummy_prefix": False}, "</s>", False),
        ({"eos_id": -1}, None, False),
    ],
)
def test_a_sentencepiece_model_trained_elsewhere(tmp_path, options, newline, lowercase):
    model, path = io.BytesIO(), tmp_path / "elsewhere.model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        **{"vocab_size": 60, "minloglevel": 2, **options},
    )
    path.write_bytes(model.getvalue())
    if not newline:
        with pytest.raises(UserError, match="no newline piece, nor </s> to stand for"):
            load_tokenizer(path)
        return
    ours = load_tokenizer(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert processor.id_to_piece(ours.newline_id) == newline
    assert ours.lowercase == lowercase
    for line in LINES[:3]:
        assert ours.encode(line) == processor.encode(line)
        words = split_words(ours, lines_of(line, "text"))
        assert [i for word in words for i in word.ids] == ours.encode(line)
    text = "the lazy dog\n\nthe fox"
    assert ours.decode(ours.encode(text)) == text
