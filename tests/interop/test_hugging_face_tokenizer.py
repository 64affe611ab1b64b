"""The tokenizer files of a Hugging Face folder."""
