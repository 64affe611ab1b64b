"""The README of an exported folder says what it is and what it lacks."""

from gpt1_jax.interop.names import Sizes
from gpt1_jax.interop.readme import Export, describe

SIZES = Sizes(40478, 12, 12, 768, 3072, 512)


def test_it_says_what_it_is_where_from_and_how_to_load_it():
    origin, name = "step 1,200 of runs/a", "OpenAIGPTLMHeadModel"
    text = describe(Export(SIZES, origin, "0.2", "gpt1", name, ("No optimizer.",)))
    assert "116,534,784 parameters: 12 layers of width 768, 12 heads" in text
    assert "gpt1_jax 0.2 from step 1,200 of runs/a" in text
    assert 'AutoModelForCausalLM.from_pretrained("THIS_FOLDER")' in text
    assert "- No optimizer.\n" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_fine_tuned_model_is_loaded_by_its_own_class():
    name = "OpenAIGPTDoubleHeadsModel"
    text = describe(Export(SIZES, "a", "0.2", "gpt1", name))
    assert f"import {name}, AutoTokenizer" in text and "AutoModel" not in text
    assert "configs/convert.py" not in text  # heads are not read back


def test_shards_are_not_for_transformers():
    text = describe(Export(SIZES, "a", "0.2", "gpt1"))
    assert "params_shapes.json" in text and "transformers" not in text
    assert "configs/convert.py:run \\\n        --config.init_from=THIS_FOLDER" in text
