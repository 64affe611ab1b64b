"""Does surprisal say how long people read a word?"""
