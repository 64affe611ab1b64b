"""Weights in other formats: OpenAI's shards and Hugging Face folders."""
