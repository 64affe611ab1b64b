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
# et al. 2018) from section 3.1 to section 5, with the code for each equation beside it.
# The code is not copied: it comes from the package `gpt1_jax` when this page is built,
# and the outputs below it were computed then. Have the
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
# We flip the sign to get a loss, and take the mean. `hidden` has the model's state for
# each token, computed from it and the tokens before it; `unembedding` turns a state
# into a score for each token of the vocabulary. Position $t$ predicts token $t+1$,
# hence the `roll`. The first token of a sequence is not predicted, because there is
# nothing before it.

# %% tags=["hide-input"]
from gpt1_jax.ops import losses

show(losses.plain_next_token_nll)

# %% [markdown]
# Training uses another form of the same function, which never holds all the scores at
# once: at the paper's size they would take 5 GB. A test checks that the two agree.
#
# An untrained model gives each of the $V$ tokens about the same probability, so its
# loss is about $\log V$. Here is the paper's model before training: 12 layers, 768
# wide, 40,478 tokens.

# %%
from gpt1_jax.model import interventions, language_model

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
# Twelve blocks follow, each of which reads the output of the one before:
#
# $$h_l = \mathrm{block}(h_{l-1}) \quad \text{for } l = 1, \dots, n$$
#
# The last states are compared with the embeddings of all tokens:
#
# $$P(u) = \mathrm{softmax}(h_n W_e^T)$$
#
# This is the first line, and a block:

# %% tags=["hide-input"]
from gpt1_jax.model import transformer

show(transformer.embed, transformer.Block)

# %% [markdown]
# `how` computes what the block asks for. Its `add_and_norm` adds the output of a branch
# (attention, then the feed-forward network), after dropout, to the branch's input, and
# *then* normalises the sum. This is "post-LN", as in the first Transformer. GPT-2 and
# later models normalise first, which is easier to train at larger sizes; a GPT-2 with
# GPT-1's sizes is another model. Each activation passes through `how.at` by its name:
# whoever wants to see one finds it there.
#
# Attention is the only place where tokens interact. Each token compares its query with
# the keys of itself and all tokens before it, and takes a weighted mean of their
# values:

# %% tags=["hide-input"]
from gpt1_jax.ops import attention

show(attention.may_attend, attention.attention_probs, attention.plain_attention)

# %% [markdown]
# The mask makes this a language model: without it, a token would see the token that it
# must predict. On the left, the mask for eight tokens; on the right, one head of the
# untrained model: with weights near zero, each token attends equally to every token
# that it can see.

# %%
seen = attention.may_attend(jnp.arange(8)[:, None], jnp.arange(8))
weights = interventions.attention(gpt1, params, tokens[:, :8])[0][0, 0]
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2))
for axis, picture, title in zip(
    axes, (seen, weights), ("the mask", "attention before training"), strict=True
):
    axis.imshow(picture, cmap="Blues", vmin=0, vmax=1)
    axis.set(title=title, xlabel="token attended to", ylabel="token that attends")
plt.show()

# %% [markdown]
# Does the mask work? Change the last of eight tokens, and see which states change:

# %%
changed = tokens[:, :8].at[0, 7].add(1)
before, after = (
    language_model.apply(gpt1, params, each).hidden[0]
    for each in (tokens[:, :8], changed)
)
print(np.asarray(jnp.any(before != after, axis=-1)).astype(int))

# %% [markdown]
# The other half of a block computes each token by itself: 768 to 3,072 and back, with a
# GELU between. The paper cites the exact function; the released code has the tanh
# approximation, and we follow the code, because it is what ran.

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
# The third line of equation 2: the scores of the next token are the products of the
# last state with the *same* matrix $W_e$ that embedded the tokens.

# %% tags=["hide-input"]
show(transformer.logits)

# %% [markdown]
# Where are the 116 million parameters? A quarter is the embedding, half the
# feed-forward networks:

# %% tags=["hide-input"]
from gpt1_jax.report.notebook_figures import component_sizes

sizes = component_sizes(params)
total = sum(sizes.values())
table(
    ("part", "parameters", "share"),
    [(name, f"{size:,}", f"{size / total:.0%}") for name, size in sizes.items()]
    + [("all", f"{total:,}", "100%")],
)

# %% [markdown]
# ## 4.1 Setup: how it is trained
#
# (In the paper, section 4.1 comes after fine-tuning. Here, training comes first.)
#
# ### The text: BooksCorpus
#
# The model reads BooksCorpus (Zhu et al. 2015): over 7,000 books that were never
# published: adventure, fantasy, romance and other genres. The paper chose it for its
# long stretches of connected text, from which a model can learn to use distant context.
# The 1B Word Benchmark, on which ELMo was trained, is about as large, but its sentences
# are shuffled. GPT-1 reached a perplexity of 18.4 per token on BooksCorpus (the paper
# does not say on which part), which is a loss of

# %%
print(f"{np.log(18.4):.2f} nats, against {np.log(40_478):.2f} for an untrained model")

# %% [markdown]
# The corpus is not public; [any text](../pretraining.md#text) can take its
# place.
#
# ### Cleaning
#
# The paper uses ftfy "to clean the raw text in BooksCorpus, standardize some
# punctuation and whitespace", and spaCy to split it into words. The rules are in the
# released code:

# %% tags=["hide-input"]
from gpt1_jax.data import gpt1_tokenizer

show(gpt1_tokenizer.standardize_text)

# %%
import ftfy

raw = "He said:  “It’s a state–of–the–art\n\n  ﬁlm — really?!”"
print(repr(gpt1_tokenizer.standardize_text(ftfy.fix_text(raw))))

# %% [markdown]
# ftfy has straightened the quotation marks and resolved the ligature; the function did
# the rest. A line break stays, as a separate token. Words are lower-cased after spaCy
# has split them: *I don't* becomes *i do n't*.
#
# ### Byte-pair encoding with 40,000 merges
#
# A word is a sequence of characters, the last of which carries the end mark `</w>`.
# Then the most frequent pair of neighbours in the corpus is merged into one symbol,
# again and again. So frequent words become one token, and rare ones a few pieces. These
# are the first ten merges for eight words:

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
# So the vocabulary is larger than the paper's 40,000: it has the merges, 238
# characters, the same characters at the end of a word, one token for unknown
# characters, and the line break. This tokenizer reads OpenAI's files:

# %% tags=["hide-input"]
show(gpt1_tokenizer.GPT1Tokenizer.encode_plainly)

# %% [markdown]
# If you pre-train your own model, SentencePiece learns an encoding of the same size
# from your text, as below.
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
# Positions are learnt like everything else: `wpe` has a row for each of 512. We can now
# predict the loss before training. The last LayerNorm makes states of 768 numbers
# with variance 1; their product with a row of $W_e$ has the variance
# $768 \times 0.02^2 = 0.31$, and half of that is added to $\log V$:

# %%
expected = np.log(40_478) + 768 * 0.02**2 / 2
print(f"expected {expected:.2f}; above, it was {float(nll.sum() / 63):.2f}")

# %% [markdown]
# ### Dropout, 37 times
#
# With probability 0.1 a number is set to 0, and the others are scaled up to keep their
# mean. This happens once on the embedding and three times in each block: on the
# attention probabilities, and on the outputs of attention and of the feed-forward
# network. That makes 1 + 3 x 12 = 37 sites.
#
# Our masks do not come from a stateful generator. Whether an element is kept is a
# function of the seed, the update, the site and the element's index. So the same
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
# so there is a small step down where the two meet. The dashed line is optax's usual
# schedule. (The plot has 20,000 updates, to make the difference visible.)

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
# The paper uses Adam with a decay of 0.01 on all weights except biases and gains. The
# released code does two things that `optax.adamw` does not: it adds epsilon before the
# bias correction, and it multiplies the decay by the correction, too.

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
# and are visited in random order, so that an epoch reads each token once, except a few
# at the ends. They ignore the ends of books: the model has no token for them.

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
# At the paper's size, with this program's configuration for it:

# %%
batch, length = paper.train.batch_size, paper.model.max_seq_len
print(f"{batch} x {length} = {batch * length:,} tokens an update")
epochs, corpus = paper.train.num_epochs, 1.1e9
updates = epochs * corpus / (batch * length)
print(f"{epochs:.0f} epochs of {corpus / 1e9} billion tokens: {updates:,.0f} updates")

# %% [markdown]
# The paper does not say how many tokens BooksCorpus has. 1.1 billion is our estimate,
# from the 985 million words that its authors count. Figure 2 ends at a million updates,
# which would be about 30 epochs. The published material does not settle which it was,
# so both are presets here.
#
# ### One update
#
# Everything together is a pure function: state and batch in, state and metrics out.

# %% tags=["hide-input"]
from gpt1_jax.training import steps as train_steps

show(train_steps.pretrain_loss, train_steps.make_pretrain_step, train_steps.update)

# %% [markdown]
# ### A model that learns in a minute
#
# Let us train a model with two layers, 64 wide, on made-up sentences with something to
# learn. Verbs agree with their subjects, pronouns with names, and people call warm and
# sweet food good, and cold and bitter food bad.

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
# Text becomes tokens: pieces of words, with a mark on the last piece of each word. Then
# the tokens are cut into windows, as above.

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
# The loss begins at $\log V$ (dotted). At the end it is mostly chance: nobody can know
# whose dog it will be. What does the model expect?

# %%
model_params = state.params


@jax.jit
def next_token_probs(known):
    """P(token | known) of each token of the vocabulary; known is [1, T]."""
    output = language_model.apply(tiny, model_params, known)
    return jax.nn.softmax(language_model.logits(tiny, output)[0, -1])


def expect(text, k=4):
    """The likeliest next tokens."""
    known = jnp.asarray([[tokenizer.newline_id, *tokenizer.encode(text)]])
    probs = next_token_probs(known)
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
# It has learnt agreement across another name, pronouns, and which food people like.
# How? After "because", *she* or *he* must come. Here is what "because" attends to: look
# for a head that finds the name.

# %%
text = "anna called the horse because"
known = [tokenizer.newline_id, *tokenizer.encode(text)]
maps = interventions.attention(tiny, model_params, jnp.asarray([known]))
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
# It is trained together with the rest of the model to make the labels likely (equation
# 4):
#
# $$L_2(\mathcal{C}) = \sum_{(x, y)} \log P(y \mid x^1, \dots, x^m)$$

# %% tags=["hide-input"]
from gpt1_jax.finetuning import heads

show(heads.apply, heads.classification_loss)

# %% [markdown]
# Predicting the text stays part of it (equation 5). The paper found that this helps on
# larger data sets and makes learning faster; its $\lambda$ is 0.5.
#
# $$L_3(\mathcal{C}) = L_2(\mathcal{C}) + \lambda \, L_1(\mathcal{C})$$

# %% tags=["hide-input"]
from gpt1_jax.finetuning import steps as finetune_steps

show(finetune_steps.finetune_loss)

# %% [markdown]
# Section 4.1 reuses the settings of pre-training, with these exceptions:

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
# OpenAI did not publish which tasks are the exceptions. RTE has 2,490 training
# examples; an incomplete last batch is dropped, as in the released code:

# %%
per_epoch = 2_490 // tuning.train.batch_size
total = int(tuning.train.num_epochs) * per_epoch
rate = optimizers.make_schedule(tuning.optimizer, total)
print(f"{per_epoch} updates an epoch, {total} in all")
for number in (0, 1, 2, total // 2, total - 1):
    print(f"update {number}: rate {float(rate(number)):.3e}")

# %% [markdown]
# A warmup of half an update has no effect, except that the first rate is 0. These
# updates follow a pre-training that took OpenAI a month on 8 GPUs, according to its
# announcement.
#
# The new parameters of a fine-tuned model are this matrix and three rows of $W_e$ for
# special tokens. For two classes that is 768 x 2 + 2 + 3 x 768 = 3,842 of 116 million
# numbers. The rest is copied, or only some layers, as in Figure 2, left:

# %% tags=["hide-input"]
from gpt1_jax.finetuning import initial_state

show(initial_state.transfer_params)

# %% [markdown]
# ## 3.3 Task-specific input transformations
#
# A language model reads one sequence, but tasks have pairs or choices. Earlier work
# added new layers for each task. GPT-1 instead writes the task as one or several
# sequences (Figure 1). Here are the four transformations on made-up examples; `[s]`,
# `[$]` and `[e]` are the new tokens.

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
# (Our tiny vocabulary lacks some of these words and splits them into letters. **▁**
# ends a word if its last letter does not.)
#
# Similarity is symmetric, so both orders are read and their states added before $W_y$.
# Each choice is read separately and gets one score, and a softmax goes over the
# choices.
#
# ### Padding removal
#
# Texts of different lengths are padded to one length. But outside attention, each token
# is computed independently, so the padding can be left out: tokens are concatenated,
# and padded again only for attention, in its usual form in a few bands of sequences of
# similar length. The function and the dropout masks stay the same.

# %% tags=["hide-input"]
from gpt1_jax.finetuning.unpad import make_unpadding, pad, unpad
from gpt1_jax.tasks.batches import real_indices

show(unpad, pad)

# %%
lengths = np.asarray([5, 3, 6, 2])
indices = real_indices(lengths[None], 8, 16)
how = make_unpadding(jnp.asarray(indices), jnp.asarray(lengths), 8)
padded = jnp.where(np.arange(8) < lengths[:, None], np.arange(1, 5)[:, None], 0)
print(padded, "\n\nunpadded:", unpad(padded, how))

# %% [markdown]
# ## 4.2 The tasks
#
# These are the data sets of Tables 2 to 4, and two that OpenAI reported elsewhere
# (COPA, WNLI). Each is an entry in a table; nothing else in the code knows about it.

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
# ## 5 Analysis: what does it know without being told?
#
# Figure 2 (right) evaluates the language model without any training on a task. The
# trick is to write the task so that the answer is a text, and to compare the
# probabilities of the answers. After a review and "very", the words *positive* and
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
@jax.jit
def next_token_nll(tokens):
    """-log P(token | tokens before it), [1, T - 1]."""
    output = language_model.apply(tiny, model_params, tokens)
    return language_model.next_token_nll(tiny, output, tokens)


def log_prob(context, answer):
    """log P(answer | context), in nats."""
    first = [tokenizer.newline_id, *tokenizer.encode(context)]
    whole = jnp.asarray([[*first, *tokenizer.encode(answer)]])
    return -float(next_token_nll(whole)[0, len(first) - 1 :].sum())


for taste in ("warm and fresh", "stale and cold", "sweet and bitter"):
    context = f"the cake was {taste}, and ben found it very"
    good, bad = (log_prob(context, f" {word}") for word in ("good", "bad"))
    print(f"{taste}: log P of good {good:.2f}, of bad {bad:.2f}")

# %% [markdown]
# The training text never answers the last one.
#
# That is all of GPT-1: equation 2, trained with equation 1 on a lot of text, then with
# equation 5 on a little. To run it, start at the [quick
# start](../../README.md#quick-start); to read on, take [an
# afternoon](../paper-to-code.md#an-afternoons-reading).
