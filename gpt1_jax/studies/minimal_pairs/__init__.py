"""Pairs of sentences that differ in what is grammatical."""
