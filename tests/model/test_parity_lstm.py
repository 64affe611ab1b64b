"""A language model with an LSTM against PyTorch's."""

import numpy as np
import pytest
from tiny_models import flat_params, observe, random_tokens

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# PyTorch's name of each of our parameters; its kernels are transposed.
NAMES = {
    "wte": "embedding.weight",
    "h_0/lstm/c_input/kernel": "lstm.weight_ih_l0",
    "h_0/lstm/c_input/bias": "lstm.bias_ih_l0",
    "h_0/lstm/c_hidden/kernel": "lstm.weight_hh_l0",
    "h_0/lstm/c_proj/kernel": "projection.weight",
    "h_0/lstm/c_proj/bias": "projection.bias",
}


class TorchModel(torch.nn.Module):
    """Embedding, `nn.LSTM` with one bias, projection and tied softmax."""

    def __init__(self, vocab_size, width, num_units):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, width)
        self.lstm = torch.nn.LSTM(width, num_units, batch_first=True)
        self.projection = torch.nn.Linear(num_units, width)
        torch.nn.init.zeros_(self.lstm.bias_hh_l0)

    def forward(self, tokens):
        width = self.embedding.embedding_dim
        outputs, _ = self.lstm(self.embedding(tokens) * width**0.5)
        return self.projection(outputs) @ self.embedding.weight.T


def test_logits_and_gradients_are_pytorchs(moving_lstm):
    (config, params), tokens = moving_lstm, random_tokens()
    model = TorchModel(config.vocab_size, config.embed_dim, config.lstm_units)
    theirs, read = dict(model.named_parameters()), torch.tensor(np.asarray(tokens))
    for name, array in flat_params(params).items():
        turned = array.T if name.endswith("kernel") else array
        theirs[NAMES[name]].data.copy_(torch.tensor(np.asarray(turned)))
    scores = model(read)
    loss = torch.nn.functional.cross_entropy(
        scores[:, :-1].reshape(-1, 97), read[:, 1:].reshape(-1).long()
    )
    loss.backward()
    ours = observe(config, params, tokens)
    assert float(np.abs(ours.logits).max()) > 0.5, "too small to tell"
    np.testing.assert_allclose(ours.logits, scores.detach(), atol=1e-5)
    assert float(ours.loss) == pytest.approx(loss.item(), abs=1e-6)
    gradients = flat_params(ours.gradient)
    assert gradients.keys() == NAMES.keys()
    for name, gradient in gradients.items():
        expected = theirs[NAMES[name]].grad
        expected = expected.T if name.endswith("kernel") else expected
        np.testing.assert_allclose(gradient, expected, atol=1e-5, err_msg=name)
