# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # The annotated GPT-1
#
# This page reads *Improving Language Understanding by Generative Pre-Training* (Radford
# et al. 2018) from section 3.1 to section 5, with the code that is each equation beside
# it. The code is not copied: it is taken from the package `gpt1_jax` when this page is
# made, and what stands below it was computed then. Have the
# [paper](https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf)
# open; [from the paper to the code](../paper-to-code.md) has every detail in tables.
#
# The idea in one sentence: train a model to predict the next word of many books, then
# train the same model a little more on a task, with as few new parameters as possible.

# %% tags=["hide"]
import inspect
import json
import random

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from IPython.display import Markdown, display

from gpt1_jax import config as config_lib
from gpt1_jax.config.usage import defaults

plt.rcParams.update({"figure.dpi": 100, "figure.constrained_layout.use": True})


def show(*things):
    """The source of functions and classes, as it is in the package."""
    for thing in things:
        thing = inspect.unwrap(thing)
        name = thing.__module__.removeprefix("gpt1_jax.").replace(".", "/")
        source = inspect.getsource(thing)
        display(Markdown(f"`{name}.py`\n\n```python\n{source}```"))


def table(header, rows):
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    display(Markdown(text))


# %% [markdown]
# ## 3.1 Unsupervised pre-training
#
# ### Equation 1: predict the next token
#
# Given tokens $u_1, \dots, u_n$, the model should give each of them a high probability,
# knowing only those before it:
#
# $$L_1(\mathcal{U}) = \sum_i \log P(u_i \mid u_{i-k}, \dots, u_{i-1}; \Theta)$$
#
# We turn the sign, so that it is a loss, and take the mean. The states `hidden` are
# what the model made of each token and of those before it; `unembedding` turns a state
# into a score for each token of the vocabulary. Position $t$ predicts token $t+1$,
# hence the `roll`. The first token of a sequence is not predicted: nothing stands
# before it.

# %% tags=["hide-input"]
from gpt1_jax.ops import losses

show(losses.plain_next_token_nll)

# %% [markdown]
# Training uses another form of the same function, which never holds all the scores: at
# the paper's size they would take 5 GB. A test holds the two together.
#
# A model that knows nothing gives each of the $V$ tokens about the same probability, so
# its loss is about $\log V$. Here is the paper's model before training: 12 layers, 768
# wide, 40,478 tokens.

# %%
from gpt1_jax.model import language_model

paper = config_lib.load(defaults("pretrain", ""))
gpt1 = paper.model.with_vocab_size(40478)
params = language_model.init_params(gpt1, jax.random.key(0))
tokens = jnp.asarray(np.random.default_rng(0).integers(40478, size=(1, 64)))
output = language_model.apply(gpt1, params, tokens)
nll = losses.plain_next_token_nll(*output, tokens, jnp.float32)
print(f"loss {float(nll.sum() / 63):.2f}; log V = {np.log(40478):.2f}")

# %% [markdown]
# ### Equation 2: the decoder
#
# A token becomes a vector, a row of $W_e$, and the vector of its position, a row of
# $W_p$, is added:
#
# $$h_0 = U W_e + W_p$$
#
# Twelve blocks follow, each of which reads what the one before wrote:
#
# $$h_l = \mathrm{block}(h_{l-1}) \quad \text{for } l = 1, \dots, n$$
#
# The last states are compared with the vectors of all tokens:
#
# $$P(u) = \mathrm{softmax}(h_n W_e^T)$$
#
# This is a block:

# %% tags=["hide-input"]
from gpt1_jax.model import transformer

show(transformer.Block)

# %% [markdown]
# Read the inner function first: what a branch (attention, then the feed-forward
# network) gives is dropped out, added to its input, and *then* normalised. This is
# "post-LN", as in the first Transformer. Since GPT-2 it is done the other way round,
# which is easier to train at larger sizes; a GPT-2 with GPT-1's sizes is another model.
#
# Attention is the only place where tokens meet. Each token asks (query) all tokens
# before it and itself (keys), and takes a mean of what they offer (values):

# %% tags=["hide-input"]
from gpt1_jax.ops import attention

show(attention.attention_probs, attention.plain_causal_attention)

# %% [markdown]
# The mask is what makes it a language model: without it, a token would see the one that
# it must predict. Left, who may see whom among eight tokens; right, one head of the
# untrained model: with weights near zero each token attends equally to all that it
# sees.

# %%
seen = jnp.tril(jnp.ones((8, 8)))
weights = language_model.attention(gpt1, params, tokens[:, :8])[0][0, 0]
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2))
for axis, picture, title in zip(
    axes, (seen, weights), ("the mask", "attention before training"), strict=True
):
    axis.imshow(picture, cmap="Blues", vmin=0, vmax=1)
    axis.set(title=title, xlabel="token attended to", ylabel="token that attends")
plt.show()

# %% [markdown]
# Does it hold? Change the last of eight tokens, and see which states change:

# %%
changed = tokens[:, :8].at[0, 7].add(1)
before, after = (
    language_model.apply(gpt1, params, each).hidden[0]
    for each in (tokens[:, :8], changed)
)
print(np.asarray(jnp.any(before != after, axis=-1)).astype(int))

# %% [markdown]
# The other half of a block computes each token by itself: 768 to 3,072 and back, with a
# GELU between. The paper cites the exact function; the released code has its tanh form,
# and the code decides, as it is what ran.

# %% tags=["hide-input"]
from gpt1_jax.ops import gelu

show(transformer.MLP, gelu.gelu)

# %% tags=["hide-input"]
x = jnp.linspace(-4, 4, 200)
figure, axes = plt.subplots(figsize=(5, 2.6))
axes.plot(x, jax.nn.relu(x), "--", label="ReLU")
axes.plot(x, gelu.gelu(x), label="GELU")
axes.legend()
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# And the third line of equation 2: the scores of the next token are the products of the
# last state with the *same* matrix $W_e$ that the tokens came from.

# %% tags=["hide-input"]
show(language_model.logits)

# %% [markdown]
# Where are the 116 million parameters? A quarter is the embedding, half the
# feed-forward networks:

# %% tags=["hide-input"]
from gpt1_jax.model import costs

sizes = costs.component_sizes(params)
total = sum(sizes.values())
table(
    ("part", "parameters", "share"),
    [(name, f"{size:,}", f"{size / total:.0%}") for name, size in sizes.items()]
    + [("all", f"{total:,}", "100%")],
)

# %% [markdown]
# ## 4.1 Setup: how it is trained
#
# (Section 4.1 comes after fine-tuning in the paper. Training comes first here.)
#
# ### The text: BooksCorpus
#
# The model reads BooksCorpus (Zhu et al. 2015): over 7,000 books that were never
# published, of adventure, fantasy, romance and other kinds. The paper wants it for its
# long stretches of connected text, from which a model can learn to use what stands far
# back. The 1B Word Benchmark, on which ELMo was trained, is about as large, but its
# sentences are shuffled. GPT-1 reached a perplexity of 18.4 per token on BooksCorpus
# (on which part of it is not said), which is a loss of

# %%
print(
    f"{np.log(18.4):.2f} nats, against {np.log(40_478):.2f} of one that knows nothing"
)

# %% [markdown]
# The corpus is not public; here [any text](../pretraining.md#text) can stand
# for it.
#
# ### Cleaning
#
# The paper uses ftfy "to clean the raw text in BooksCorpus, standardize some
# punctuation and whitespace", and spaCy to split it into words. Its rules are in the
# released code:

# %% tags=["hide-input"]
from gpt1_jax.data import gpt1_tokenizer

show(gpt1_tokenizer.standardize_text)

# %%
import ftfy

raw = "He said:  “It’s a state–of–the–art\n\n  ﬁlm — really?!”"
print(repr(gpt1_tokenizer.standardize_text(ftfy.fix_text(raw))))

# %% [markdown]
# ftfy has straightened the quotation marks and the ligature, and the function did the
# rest. A line break stays, as a token of its own. Words are lower-cased after spaCy has
# split them: *I don't* becomes *i do n't*.
#
# ### Byte-pair encoding with 40,000 merges
#
# A word is spelled in characters, the last of which is marked as its end, `</w>`. Then
# neighbours are merged into one symbol, again and again, first the pair that was the
# most frequent in the corpus. So frequent words become one token, and rare ones a few
# pieces. The first ten merges that eight words lead to:

# %%
import tokenizers

counts = {"low": 5, "lower": 2, "lowest": 3, "new": 4, "newer": 6, "newest": 5}
counts |= {"wide": 3, "widest": 2}
bpe = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix="</w>"))
trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=10_000, end_of_word_suffix="</w>", show_progress=False
)
bpe.train_from_iterator([word for word, n in counts.items() for _ in range(n)], trainer)
merges = [" + ".join(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
print("; ".join(merges[:10]))

characters, ends = 238, 238  # of OpenAI's vocabulary
print(f"OpenAI's: {1 + characters + ends + 40_000 + 1:,} tokens")

# %% [markdown]
# The vocabulary is thus larger than the 40,000 of the paper: it has the merges, 238
# characters, the same at the end of a word, one token for what is unknown, and the line
# break. This is the tokenizer that reads OpenAI's files:

# %% tags=["hide-input"]
show(gpt1_tokenizer.GPT1Tokenizer.encode)

# %% [markdown]
# Those who pre-train anew get an encoding of the same size, learnt from their own text
# by SentencePiece, as below.
#
# ### The model, and its first weights
#
# "Since layernorm is used extensively throughout the model, a simple weight
# initialization of N(0, 0.02) was sufficient": each matrix and each embedding is drawn
# with a standard deviation of 0.02. In the released code it is the same at any depth
# (GPT-2 makes the last matrix of each branch smaller), biases are 0 and the gains of
# LayerNorm are 1.

# %% tags=["hide-input"]
from gpt1_jax.model import layers

show(layers.Dense)

# %%
block = params["h_11"]
drawn = {
    "token embedding": params["wte"],
    "position embedding": params["wpe"],
    "layer 12: queries, keys, values": block["attn"]["c_attn"]["kernel"],
    "layer 12: last matrix of the MLP": block["mlp"]["c_proj"]["kernel"],
    "layer 12: its bias": block["mlp"]["c_proj"]["bias"],
    "layer 12: gain": block["ln_2"]["scale"],
}
table(
    ("parameters", "shape", "mean", "standard deviation"),
    [
        (
            name,
            " x ".join(map(str, each.shape)),
            f"{each.mean():.4f}",
            f"{each.std():.4f}",
        )
        for name, each in drawn.items()
    ],
)

# %% [markdown]
# Positions are learnt like all else: `wpe` has a row for each of 512. So the loss
# before training can be told in advance. The last LayerNorm makes states of 768 numbers
# with variance 1; their product with a row of $W_e$ has the variance
# $768 \times 0.02^2 = 0.31$, and half of that is added to $\log V$:

# %%
expected = np.log(40_478) + 768 * 0.02**2 / 2
print(f"expected {expected:.2f}; above, it was {float(nll.sum() / 63):.2f}")

# %% [markdown]
# ### Dropout, 37 times
#
# With probability 0.1 a number is set to 0, and the others are scaled up, so that their
# mean stays. It happens once on the embedding and three times in each block: on the
# attention probabilities, and on what attention and the feed-forward network give back.
# 1 + 3 x 12 = 37 sites.
#
# Our masks are not drawn from a generator that has a state. Whether an element is kept
# is a function of the seed, the update, the site and the element's place. So the same
# elements are dropped on one device or on many, and after a restart.

# %% tags=["hide-input"]
from gpt1_jax.ops import dropout

show(dropout.dropout, dropout.plain_dropout)

# %%
noise = dropout.step_noise(seed=0, step=jnp.int32(1), num_rows=4)
ones = jnp.ones((4, 10_000))
for site in (0, 1, 36):
    dropped = dropout.dropout(ones, 0.1, noise, site)
    again = dropout.dropout(ones[2:], 0.1, noise, site, rows=noise.rows[2:])
    same = bool((dropped[2:] == again).all())
    print(
        f"site {site}: {float((dropped == 0).mean()):.3f} are zero, the mean is "
        f"{float(dropped.mean()):.3f}; half of the rows have the same mask: {same}"
    )

# %% [markdown]
# ### The learning rate
#
# It rises over 2,000 updates to 2.5e-4 and falls "to 0 using a cosine schedule". In the
# released code the cosine runs over *all* updates and not from the end of the warmup,
# so there is a small step down where the two meet. optax' usual schedule is the dashed
# line. (Here with 20,000 updates, so that the difference can be seen.)

# %%
from gpt1_jax.training import optimizer as optimizers

released = optimizers.make_schedule(paper.optimizer, 20_000)
usual = optax.warmup_cosine_decay_schedule(0.0, 2.5e-4, 2_000, 20_000)
steps = jnp.arange(0, 20_000, 20)
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), width_ratios=[2, 1])
for axis in axes:
    axis.plot(steps, released(steps), label="released")
    axis.plot(steps, jax.vmap(usual)(steps), "--", label="optax")
    axis.set(xlabel="update")
    axis.grid(alpha=0.3)
axes[0].set(ylabel="learning rate", xticks=[0, 2_000, 10_000, 20_000])
axes[0].legend()
axes[1].set(xlim=(1_500, 3_500), ylim=(2.2e-4, 2.55e-4), title="where they meet")
plt.show()

# %% [markdown]
# ### Adam, as released
#
# The paper names Adam with a decay of 0.01 on all weights that are no bias or gain. The
# released code does two things that `optax.adamw` does not: it adds epsilon before the
# bias correction, and it multiplies the decay, too, with the correction.

# %% tags=["hide-input"]
show(optimizers.released_adam)

# %% [markdown]
# One update of one matrix by hand, and by the function:

# %%
rate, b1, b2, eps, decay = 0.1, 0.9, 0.999, 1e-8, 0.01
weight, gradient = np.full((1, 1), 2.0), np.full((1, 1), 0.5)
adam = optimizers.released_adam(lambda step: rate, b1, b2, eps, decay)
updates, _ = adam.update(
    {"w": jnp.asarray(gradient)}, adam.init({"w": weight}), {"w": jnp.asarray(weight)}
)

m, v = (1 - b1) * gradient, (1 - b2) * gradient**2
correction = np.sqrt(1 - b2) / (1 - b1)
by_hand = -rate * correction * (m / (np.sqrt(v) + eps) + decay * weight)
print(f"by hand {by_hand.item():.6f}, by the function {updates['w'].item():.6f}")

# %% [markdown]
# The first update of a run has rate 0, so it changes nothing. This too is as released.
#
# ### Batches: 64 sequences of 512 tokens, for 100 epochs
#
# "We train for 100 epochs on minibatches of 64 randomly sampled, contiguous sequences
# of 512 tokens." Here the windows of an epoch lie side by side, from a random token on,
# and are visited in random order, so that an epoch reads each token once, but for a few
# at the ends. They pay no heed to where a book ends: the model has no token for that.

# %% tags=["hide-input"]
from gpt1_jax.data.windows import TrainWindows

show(TrainWindows)


# %%
class Reader:
    """Reads from tokens, as `TrainWindows` wants it."""

    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def read(self, start, length):
        return self.ids[start : start + length]


reader = Reader(np.arange(1_000))
small = TrainWindows(reader, 100, 3, slice(0, 3), num_steps=6, seed=0)
for number in range(6):
    epochs = [small.epoch(number, row) for row in range(3)]
    print(f"update {number}: windows from {small.starts(number)}, of epochs {epochs}")

# %% [markdown]
# At the paper's size, from the configuration that this program has for it:

# %%
batch, length = paper.train.batch_size, paper.model.max_seq_len
print(f"{batch} x {length} = {batch * length:,} tokens an update")
epochs, corpus = paper.train.num_epochs, 1.1e9
updates = epochs * corpus / (batch * length)
print(f"{epochs:.0f} epochs of {corpus / 1e9} billion tokens: {updates:,.0f} updates")

# %% [markdown]
# The paper does not say how many tokens BooksCorpus has. 1.1 billion is our estimate,
# from the 985 million words that its makers count. Figure 2 ends at a million updates,
# which would be about 30 epochs of that; which it was cannot be told from what is
# published, so both are presets here.
#
# ### One update
#
# All of it together is a pure function: state and batch in, state and metrics out.

# %% tags=["hide-input"]
from gpt1_jax.training import steps as train_steps

show(train_steps.pretrain_loss, train_steps.make_pretrain_step, train_steps.update)

# %% [markdown]
# ### A model that learns in a minute
#
# Let us train one: two layers, 64 wide, on made-up sentences in which there is
# something to learn. Verbs agree with their subjects, pronouns with names, and people
# call good what is warm and sweet, and bad what is cold and bitter.

# %%
draw = random.Random(0)
NAMES = {"anna": "she", "mary": "she", "ben": "he", "tom": "he"}


def sentence():
    kind = draw.randrange(3)
    name = draw.choice(list(NAMES))
    if kind == 0:
        good = draw.random() < 0.5
        taste = ["warm", "sweet", "fresh"] if good else ["cold", "bitter", "stale"]
        one, two = draw.sample(taste, 2)
        food = draw.choice(["soup", "bread", "tea", "cake"])
        verdict = "good" if good else "bad"
        taste = f"the {food} was {one} and {two}"
        return f"{taste}, and {name} found it very {verdict} indeed."
    animal = draw.choice(["dog", "cat", "bird", "horse"])
    if kind == 1:
        many = draw.random() < 0.5
        verb = draw.choice(["sleep", "run", "wait", "play"])
        place = draw.choice(["garden", "house", "yard"])
        subject = f"the {animal}s" if many else f"the {animal}"
        return f"{subject} of {name} {verb}{'' if many else 's'} in the {place}."
    return f"{name} called the {animal} because {NAMES[name]} liked it."


lines = [" ".join(sentence() for _ in range(3)) for _ in range(4000)]
print("\n".join(lines[:3]))

# %% [markdown]
# Text becomes tokens: pieces of words, of which the last ends its word. Then windows
# are cut from them, as above.

# %%
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer

tokenizer = SentencePieceTokenizer.train(lines, vocab_size=480)
ids = np.asarray(tokenizer.encode("\n".join(lines)))
print(len(ids), "tokens:", [tokenizer.decode([i]) for i in ids[:12].tolist()])

windows = TrainWindows(Reader(ids), 48, 16, slice(0, 16), num_steps=1000, seed=0)
print("a batch:", windows[0].shape)

# %%
import dataclasses

sizes = {"num_layers": 2, "num_heads": 4, "embed_dim": 64, "mlp_dim": 256}
no_dropout = {"embed_dropout": 0.0, "attn_dropout": 0.0, "resid_dropout": 0.0}
tiny = dataclasses.replace(
    gpt1, **sizes, **no_dropout, max_seq_len=48, vocab_size=tokenizer.vocab_size
)
adam = optimizers.make_optimizer(
    dataclasses.replace(paper.optimizer, learning_rate=3e-3, warmup_steps=100), 1000
)

from gpt1_jax.training.state import init_state

state = init_state(language_model.init_params(tiny, jax.random.key(1)), adam)
step = jax.jit(train_steps.make_pretrain_step(tiny, adam), donate_argnums=0)
curve = []
for number in range(1000):
    state, metrics = step(state, windows[number], 0)
    curve.append(float(metrics["loss"]))

figure, axes = plt.subplots(figsize=(6, 2.8))
axes.plot(curve)
axes.axhline(np.log(tokenizer.vocab_size), color="0.5", linestyle=":")
axes.set(xlabel="update", ylabel="loss, nats a token", ylim=(0, None))
axes.grid(alpha=0.3)
plt.show()
print(f"{curve[0]:.2f} at first, {np.mean(curve[-20:]):.2f} in the last 20 updates")

# %% [markdown]
# It begins at $\log V$ (dotted). What is left at the end is mostly chance: nobody can
# know whose dog it will be. What does it expect?

# %%
model_params = state.params


def expect(text, k=4):
    """The likeliest next tokens."""
    known = jnp.asarray([[tokenizer.newline_id, *tokenizer.encode(text)]])
    output = language_model.apply(tiny, model_params, known)
    probs = jax.nn.softmax(language_model.logits(tiny, output)[0, -1])
    best = jnp.argsort(-probs)[:k]
    return ", ".join(
        f"{tokenizer.decode([int(i)])} {float(probs[i]):.2f}" for i in best
    )


for text in (
    "the dogs of anna",
    "the dog of anna",
    "tom called the cat because",
    "mary called the cat because",
    "the soup was cold and bitter, and mary found it very",
):
    print(f"{text} ... {expect(text)}")

# %% [markdown]
# It has learnt agreement over another name, pronouns, and what people find good. How?
# Here is what "because" attends to, after which *she* or *he* must come: look for a
# head that finds the name.

# %%
text = "anna called the horse because"
known = [tokenizer.newline_id, *tokenizer.encode(text)]
maps = language_model.attention(tiny, model_params, jnp.asarray([known]))
names = ["↵", *(tokenizer.decode([i]) for i in known[1:])]
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for layer, axis in enumerate(axes):
    axis.imshow(maps[layer][0, :, -1], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axis.set_yticks(range(4), [f"head {i + 1}" for i in range(4)])
    axis.set_title(f"layer {layer + 1}: attention of “because”", fontsize=10)
plt.show()

# %% [markdown]
# ## 3.2 Supervised fine-tuning
#
# An example has a text $x^1, \dots, x^m$ and a label $y$. The last block's state at the
# last token goes through one new matrix:
#
# $$P(y \mid x^1, \dots, x^m) = \mathrm{softmax}(h_l^m W_y)$$
#
# which is trained with all the rest to make the labels likely (equation 4):
#
# $$L_2(\mathcal{C}) = \sum_{(x, y)} \log P(y \mid x^1, \dots, x^m)$$

# %% tags=["hide-input"]
from gpt1_jax.model import heads

show(heads.apply, losses.classification_loss)

# %% [markdown]
# Predicting the text stays part of it (equation 5). The paper found that this helps on
# larger data sets and makes learning faster; its $\lambda$ is 0.5.
#
# $$L_3(\mathcal{C}) = L_2(\mathcal{C}) + \lambda \, L_1(\mathcal{C})$$

# %% tags=["hide-input"]
show(train_steps.finetune_loss)

# %% [markdown]
# The settings of section 4.1 are those of pre-training, unless it says otherwise. It
# says so for these:

# %% tags=["hide-input"]
tuning = config_lib.load({**defaults("finetune", "rte"), "init_from": "a run"})
table(
    ("what", "fine-tuning", "pre-training"),
    [
        ("learning rate, at most", tuning.optimizer.learning_rate, 2.5e-4),
        ("batch", f"{tuning.train.batch_size} examples", f"{batch} x {length} tokens"),
        ("epochs", f"{tuning.train.num_epochs:.0f}, for most tasks", f"{epochs:.0f}"),
        ("schedule", tuning.optimizer.schedule, paper.optimizer.schedule),
        (
            "warmup",
            f"{tuning.optimizer.warmup_fraction:.1%} of the updates",
            "2,000 updates",
        ),
        ("dropout before $W_y$", tuning.head.dropout, "-"),
        (r"$\lambda$", tuning.head.aux_lm_weight, "-"),
    ],
)

# %% [markdown]
# Which tasks are the exceptions is not published. RTE has 2,490 training examples; a
# last batch that is not full is left out, as in the released code:

# %%
per_epoch = 2_490 // tuning.train.batch_size
total = int(tuning.train.num_epochs) * per_epoch
rate = optimizers.make_schedule(tuning.optimizer, total)
print(f"{per_epoch} updates an epoch, {total} in all")
for number in (0, 1, 2, total // 2, total - 1):
    print(f"update {number}: rate {float(rate(number)):.3e}")

# %% [markdown]
# A warmup of half an update is none, but for the first rate of 0. These updates follow
# a pre-training that took OpenAI a month on 8 GPUs, by its announcement.
#
# What is new in a fine-tuned model is this matrix and three rows of $W_e$ for special
# tokens. For two classes that is 768 x 2 + 2 + 3 x 768 = 3,842 of 116 million numbers.
# All else is copied, or only some layers of it, which is Figure 2, left:

# %% tags=["hide-input"]
from gpt1_jax.finetuning import initial_state

show(initial_state.transfer_params)

# %% [markdown]
# ## 3.3 Task-specific input transformations
#
# A language model reads one sequence; tasks have pairs, or choices. Earlier work built
# new parts on top for each task. GPT-1 writes the task as one or several sequences
# (Figure 1). Here are the four, on examples of our own; `[s]`, `[$]` and `[e]` are
# the new tokens.

# %% tags=["hide-input"]
from gpt1_jax.tasks import transforms

show(transforms.transform)

# %%
from gpt1_jax.data.tokenizers import special_tokens
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Record

EXAMPLES = {
    "sst2": {"sentence": "the soup was warm.", "label": 1},
    "rte": {"sentence1": "the dogs run.", "sentence2": "animals run.", "label": 0},
    "qqp": {"question1": "who ran?", "question2": "which dogs ran?", "label": 1},
    "copa": {
        "premise": "anna was cold.",
        "question": "effect",
        "choice1": "she made tea.",
        "choice2": "the dog sleeps.",
        "label": 0,
    },
}
specials = special_tokens(tokenizer.vocab_size)
marks = {specials.start: "`[s]`", specials.delimiter: "`[$]`"}
marks[specials.extract] = "`[e]`"


def encoded(name):
    """The example of a task, transformed."""
    task, columns = TASKS[name], dict(EXAMPLES[name])
    example = task.check_record(Record(columns, name), needs_label=True)
    return transforms.encode_examples(task, [example], tokenizer, 48)


def spelled(sequence):
    """Tokens as text, with the special ones marked."""
    return " ".join(marks.get(i) or tokenizer.decode([i]) or "▁" for i in sequence)


rows = []
for name in EXAMPLES:
    examples = encoded(name)
    parts = np.split(examples.tokens, examples.starts[1:-1])
    for part in parts:
        label = examples.targets[0].tolist()
        rows.append((TASKS[name].inputs.transform, spelled(part.tolist()), label))
table(("transformation", "a sequence", "target"), rows)

# %% [markdown]
# (Our tiny vocabulary has few of these words, so some fall into letters. **▁** ends a
# word whose last letter does not.)
#
# Similarity has no order, so both orders are read and their states added before $W_y$.
# Each choice is read by itself, gets one number, and a softmax goes over the choices.
#
# ### Padding removal
#
# Texts of different lengths are padded to one. But outside of attention a token is
# computed by itself, so the padding can be left out: tokens are laid end to end, and
# spread out again only where they attend to each other. The result is the same
# function, and the dropout masks are the same too.

# %% tags=["hide-input"]
from gpt1_jax.ops.unpad import make_unpadding, pad, unpad
from gpt1_jax.tasks.batches import real_indices

show(unpad, pad)

# %%
lengths = np.asarray([5, 3, 6, 2])
indices = real_indices(lengths[:, None], 8, 1, 1, 16)
how = make_unpadding(jnp.asarray(indices), jnp.asarray(lengths), 8)
padded = jnp.where(np.arange(8) < lengths[:, None], np.arange(1, 5)[:, None], 0)
print(padded, "\n\nunpadded:", unpad(padded, how))

# %% [markdown]
# ## 4.2 The tasks
#
# The data sets of Tables 2 to 4, and two that OpenAI reported elsewhere (COPA, WNLI).
# Each is an entry in a table, and nothing else in the code knows about it.

# %% tags=["hide-input"]
from gpt1_jax.tasks.paper_tasks import select_tasks

all_tasks = config_lib.load({**defaults("finetune", "all"), "init_from": "a run"})
table(
    ("task", "transformation", "labels", "metrics"),
    [
        (
            task.title,
            task.inputs.transform,
            ", ".join(task.target.labels)
            or "from {:g} to {:g}".format(*task.target.score_range),
            ", ".join(task.metrics),
        )
        for task in select_tasks(all_tasks)[0]
    ],
)

# %% [markdown]
# ## 5 Analysis: what does it know before it is told?
#
# Figure 2 (right) asks the language model itself, without any training on a task. The
# trick is to write the task so that the answer is a text, and to see which answer the
# model finds likelier. A review is followed by "very" and the words *positive* and
# *negative* are compared; a pronoun is replaced by each candidate, and the rest of the
# sentence decides.

# %% tags=["hide-input"]
from gpt1_jax.studies.zero_shot.tasks import ZERO_SHOT

table(
    ("task", "read", "scored", "answers"),
    [
        (
            each.task.title,
            f"{each.passage} {each.context}".strip() or "-",
            each.scored,
            ", ".join(each.answers) or "the example's",
        )
        for each in ZERO_SHOT.values()
    ],
)

# %% [markdown]
# Our tiny model has never seen the word *positive*, but it knows *good* and *bad*.
# Asked in the same way:


# %%
def log_prob(context, answer):
    """log P(answer | context), in nats."""
    first = [tokenizer.newline_id, *tokenizer.encode(context)]
    whole = jnp.asarray([[*first, *tokenizer.encode(answer)]])
    output = language_model.apply(tiny, model_params, whole)
    nll = language_model.next_token_nll(tiny, output, whole)
    return -float(nll[0, len(first) - 1 :].sum())


for taste in ("warm and fresh", "stale and cold", "sweet and bitter"):
    context = f"the cake was {taste}, and ben found it very"
    good, bad = (log_prob(context, f" {word}") for word in ("good", "bad"))
    print(f"{taste}: log P of good {good:.2f}, of bad {bad:.2f}")

# %% [markdown]
# The last is a question that its text never answers.
#
# That is all of GPT-1: equation 2, trained by equation 1 on much text, then by equation
# 5 on a little. To run it, start at the [quick start](../../README.md#quick-start); to
# read on, take [an afternoon](../paper-to-code.md#an-afternoons-reading).
