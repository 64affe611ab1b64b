"""The LSTM against PyTorch's: the recurrence alone, and the whole language model."""

import functools

import numpy as np
import pytest
from forms import with_gradients
from tiny_models import flat_params, observe, random_tokens

from gpt1_jax.ops.lstm import lstm, plain_lstm, zero_state

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

N, T, U = 3, 7, 6


def plain(inputs, recurrent, dtype):
    return plain_lstm(inputs, recurrent, zero_state(len(inputs), U, dtype))[0]


@pytest.mark.parametrize("function", [lstm, plain], ids=["fast", "plain"])
def test_outputs_and_gradients_are_pytorchs(function):
    """Its input matrix picks out the gates' inputs, and one of its biases is zero."""
    rng = np.random.default_rng(0)
    shapes = (N, T, 4 * U), (U, 4 * U), (N, T, U)
    inputs, recurrent, grad = (rng.normal(size=s).astype(np.float32) for s in shapes)
    bias = np.linspace(-1, 1, 4 * U, dtype=np.float32)
    theirs = torch.nn.LSTM(4 * U, U, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(torch.eye(4 * U))
        theirs.weight_hh_l0.copy_(torch.tensor(recurrent.T))
        theirs.bias_ih_l0.copy_(torch.tensor(bias))
        theirs.bias_hh_l0.zero_()
    read = torch.tensor(inputs, requires_grad=True)
    expected, _ = theirs(read)
    expected.backward(torch.tensor(grad))

    form = functools.partial(function, dtype=np.dtype("float32"))
    outputs, d_inputs, d_recurrent = map(
        np.asarray, with_gradients(form, grad, inputs + bias, recurrent)
    )
    for ours, its in (
        (outputs, expected.detach()),
        (d_inputs, read.grad),
        (d_recurrent, theirs.weight_hh_l0.grad.T),
        (d_inputs.sum((0, 1)), theirs.bias_ih_l0.grad),
    ):
        np.testing.assert_allclose(ours, its, atol=1e-5)


class TorchModel(torch.nn.Module):
    """Embedding, `nn.LSTM` with one bias, projection and tied softmax."""

    def __init__(self, params):
        super().__init__()
        arrays = {
            name: torch.tensor(np.asarray(leaf))
            for name, leaf in flat_params(params).items()
        }
        (vocab_size, width) = arrays["wte"].shape
        num_units = len(arrays["h_0/lstm/c_hidden/kernel"])
        self.embedding = torch.nn.Embedding(vocab_size, width)
        self.lstm = torch.nn.LSTM(width, num_units, batch_first=True)
        self.projection = torch.nn.Linear(num_units, width)
        with torch.no_grad():
            self.embedding.weight.copy_(arrays["wte"])
            self.lstm.weight_ih_l0.copy_(arrays["h_0/lstm/c_input/kernel"].T)
            self.lstm.weight_hh_l0.copy_(arrays["h_0/lstm/c_hidden/kernel"].T)
            self.lstm.bias_ih_l0.copy_(arrays["h_0/lstm/c_input/bias"])
            self.lstm.bias_hh_l0.zero_()
            self.projection.weight.copy_(arrays["h_0/lstm/c_proj/kernel"].T)
            self.projection.bias.copy_(arrays["h_0/lstm/c_proj/bias"])

    def forward(self, tokens):
        width = self.embedding.embedding_dim
        outputs, _ = self.lstm(self.embedding(tokens) * width**0.5)
        return self.projection(outputs) @ self.embedding.weight.T

    def gradients(self):
        """By the names of our parameters."""
        return {
            "wte": self.embedding.weight.grad,
            "h_0/lstm/c_input/kernel": self.lstm.weight_ih_l0.grad.T,
            "h_0/lstm/c_input/bias": self.lstm.bias_ih_l0.grad,
            "h_0/lstm/c_hidden/kernel": self.lstm.weight_hh_l0.grad.T,
            "h_0/lstm/c_proj/kernel": self.projection.weight.grad.T,
            "h_0/lstm/c_proj/bias": self.projection.bias.grad,
        }


def test_logits_and_gradients_are_pytorchs(moving_lstm):
    (config, params), tokens = moving_lstm, random_tokens()
    theirs, read = TorchModel(params), torch.tensor(np.asarray(tokens))
    scores = theirs(read)
    loss = torch.nn.functional.cross_entropy(
        scores[:, :-1].reshape(-1, 97), read[:, 1:].reshape(-1).long()
    )
    loss.backward()
    ours = observe(config, params, tokens)
    assert float(np.abs(ours.logits).max()) > 0.5, "too small to tell"
    np.testing.assert_allclose(ours.logits, scores.detach(), atol=1e-5)
    assert float(ours.loss) == pytest.approx(loss.item(), abs=1e-6)
    gradients = flat_params(ours.gradient)
    assert gradients.keys() == theirs.gradients().keys()
    for name, expected in theirs.gradients().items():
        np.testing.assert_allclose(gradients[name], expected, atol=1e-5, err_msg=name)
