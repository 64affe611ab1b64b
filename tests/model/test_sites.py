from gpt1_jax.model import sites


def test_no_two_places_share_a_number():
    """Of 12 layers and the head that follows; an LSTM's layer has one place."""
    places = sites.ATTN_PROBS, sites.ATTN_OUTPUT, sites.MLP_OUTPUT
    numbers = [sites.block_site(layer, p) for layer in range(13) for p in places]
    numbers += [sites.EMBED_SITE, sites.EMBED_POSITION_SITE]
    assert len(set(numbers)) == len(numbers)
    first_after = sites.block_site(1, sites.ATTN_PROBS)
    assert sites.EMBED_SITE < sites.block_site(0, sites.LSTM_OUTPUT) < first_after
