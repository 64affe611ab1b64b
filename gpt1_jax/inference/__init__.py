"""Inference: continuations, scores of tokens and words, hidden states."""
