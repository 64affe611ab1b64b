"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const steps = [...new Set(data.runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
const words = data.lines.flat();
const MOST_BITS = 16; // the strongest colour
const MOST_PIXELS = { head: 40, map: 352 }; // of a side of a map
const COLOURS = ["var(--cold)", "var(--hot)", "var(--ink)", "var(--soft)"];
const DASHES = ["", "6 3", "2 2", "8 3 2 3"];
// What is chosen: a word and one of its tokens, a head; whether the pointer leaves it so.
const chosen = { step: steps.length - 1, word: 0, token: 0, layer: 0, head: 0, kept: false };

// --- the data of a run at a step -------------------------------------------------

const unpack = (text, Type) =>
  new Type(Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0)).buffer);

for (const run of data.runs) {
  run.bits = unpack(run.bits, Float32Array);
  run.ranks = unpack(run.ranks, Uint32Array);
  run.expectedTokens = unpack(run.expectedTokens, Uint16Array);
  run.expectedProbs = unpack(run.expectedProbs, Uint16Array);
  run.sources = unpack(run.sources, Uint16Array);
  run.weights = unpack(run.weights, Uint16Array);
  run.begins = unpack(run.begins, Uint16Array);
  run.similarity = unpack(run.similarity, Float32Array);
  const size = run.layers * run.heads * run.tokens.length * run.numSources;
  run.attentionSteps = size ? run.sources.length / size : 0;
}

// The newest of a run's own steps that has been reached; its first before that.
const stepOf = (run) =>
  Math.max(0, run.steps.findLastIndex((step) => step <= steps[chosen.step]));
const tokenBits = (run, step, position) => run.bits[step * run.tokens.length + position];
const positions = (run, word) => {
  const [first, stop] = run.spans[word];
  return Array.from({ length: stop - first }, (_, k) => first + k);
};
const wordBits = (run, step, word) =>
  positions(run, word).reduce((sum, position) => sum + tokenBits(run, step, position), 0);
// Which of the word's tokens is chosen: a run with another tokenizer may have fewer.
const tokenOf = (run) => Math.min(chosen.token, positions(run, chosen.word).length - 1);
const place = (run) => run.spans[chosen.word][0] + tokenOf(run);
const headOf = (run) => [Math.min(chosen.layer, run.layers - 1), Math.min(chosen.head, run.heads - 1)];

function expectedAt(run, position) {
  const start = (stepOf(run) * run.tokens.length + position) * run.numExpected;
  return Array.from({ length: run.numExpected }, (_, k) => ({
    index: run.expectedTokens[start + k],
    token: run.vocabulary[run.expectedTokens[start + k]],
    share: run.expectedProbs[start + k] / 65535,
  }));
}

// The tokens that a head attends to most, the first of them most.
function attendedAt(run, layer, head, position) {
  const skipped = run.steps.length - run.attentionSteps; // these have no attention
  const step = Math.max(0, stepOf(run) - skipped);
  const row = ((step * run.layers + layer) * run.heads + head) * run.tokens.length;
  const start = (row + position) * run.numSources;
  return Array.from({ length: run.numSources }, (_, k) => ({
    position: run.sources[start + k],
    share: run.weights[start + k] / 65535,
  })).filter((each) => each.share > 0);
}

// The share of all tokens but these.
const restOf = (attended) => 1 - attended.reduce((sum, each) => sum + each.share, 0);

// --- elements --------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") for (const each of Object.entries(value)) made.style.setProperty(...each);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawing(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Whether a key is for the browser, such as Alt+Left.
function isShortcut(event) {
  return event.altKey || event.ctrlKey || event.metaKey;
}

// Buttons of which one is chosen: one stop of the Tab key, from which arrows go on.
function radios(group, buttons, columns, choose) {
  group.setAttribute("role", "radiogroup");
  buttons.forEach((button, number) => {
    button.setAttribute("role", "radio");
    button.addEventListener("click", () => choose(number));
  });
  group.addEventListener("keydown", (event) => {
    if (isShortcut(event)) return;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const next = buttons[buttons.indexOf(event.target) + by];
    if (!by) return;
    event.preventDefault();
    if (!next) return;
    next.focus();
    next.click();
  });
}

function check(buttons, number) {
  buttons.forEach((button, each) => {
    button.setAttribute("aria-checked", each === number);
    button.tabIndex = each === number ? 0 : -1;
  });
}

const percent = (share) =>
  share < 0.0005 ? "<0.1%" : share < 0.0995 ? `${(100 * share).toFixed(1)}%` : `${Math.round(100 * share)}%`;
const number = (value) => value.toLocaleString("en");
// How strong a weight of attention is drawn: small ones can be seen, too.
const strength = Math.sqrt;
const byAttention = () => document.getElementById("colours").value === "attention";
const texts = [...document.querySelectorAll(".text")];
const slider = document.getElementById("steps");
slider.max = steps.length - 1;
const sections = (name) => [...document.querySelectorAll(`section.${name}`)];
const wordId = (run, word) => `run${run}word${word}`;

texts.forEach((text, run) => {
  text.append(drawing("svg", { "aria-hidden": "true" }));
  let word = 0;
  for (const line of data.lines) {
    const paragraph = element("p", {}, element("span", { class: "start", "aria-hidden": "true" }, "↵"));
    for (const each of line) {
      const id = wordId(run, word);
      paragraph.append(" ", element("span", { class: "word", role: "option", id, dir: "auto" }, each));
      word += 1;
    }
    text.append(paragraph);
  }
});

// --- what is shown ---------------------------------------------------------------

function show() {
  document.getElementById("step").textContent = number(steps[chosen.step]);
  slider.value = chosen.step;
  slider.setAttribute("aria-valuetext", `after ${steps[chosen.step]} updates`);
  document.body.classList.toggle("kept", chosen.kept);
  document.querySelector(".chosen").textContent = words[chosen.word];
  document.querySelector(".place").textContent = `word ${chosen.word + 1} of ${words.length}`;
  showScale();
  data.runs.forEach((run, index) => {
    showText(run, texts[index], index);
    showExpected(run, sections("expected")[index]);
    if (run.layers) showAttention(run, sections("attended")[index]);
    showLayers(run, sections("layers")[index]);
  });
  showCurve();
}

function showScale() {
  const [shares, names] = byAttention()
    ? [[0.01, 0.05, 0.2, 0.5, 1].map(strength), ["1", "5", "20", "50", "100% of the attention"]]
    : [[0, 0.25, 0.5, 0.75, 1], [0, 4, 8, 12].concat(`${MOST_BITS} bits or more`)];
  const scale = document.querySelector(".scale");
  scale.classList.toggle("attention", byAttention());
  scale.replaceChildren("Scale:",
    ...shares.map((share, k) => element("span", { style: { "--share": share } }, names[k])));
}

function showText(run, text, index) {
  const step = stepOf(run);
  const attended = new Map();
  if (byAttention() && run.layers)
    for (const each of attendedAt(run, ...headOf(run), place(run))) attended.set(each.position, each.share);
  const lines = [];
  // Colours an element by attention to its tokens, and keeps a line to it.
  const paint = (made, tokens) => {
    const share = tokens.reduce((sum, token) => sum + (attended.get(token) ?? 0), 0);
    made.style.setProperty("--share", strength(Math.min(share, 1)));
    if (share) lines.push([made, share]);
  };
  let sum = 0;
  words.forEach((word, each) => {
    const bits = wordBits(run, step, each);
    sum += bits;
    const made = document.getElementById(wordId(index, each));
    if (byAttention()) paint(made, positions(run, each));
    else made.style.setProperty("--share", Math.min(bits / MOST_BITS, 1));
    made.setAttribute("aria-selected", each === chosen.word);
    made.setAttribute("aria-label", `${word}, ${bits.toFixed(1)} bits`);
  });
  let first = 0;
  text.querySelectorAll(".start").forEach((start, line) => {
    paint(start, [run.spans[first][0] - 1]);
    first += data.lines[line].length;
  });
  text.classList.toggle("attention", byAttention());
  text.setAttribute("aria-activedescendant", wordId(index, chosen.word));
  text.closest("section").querySelector(".mean").textContent =
    `${(sum / words.length).toFixed(2)} bits per word after ${number(run.steps[step])} updates.`;
  showLines(text, document.getElementById(wordId(index, chosen.word)), lines);
}

// Lines over the text, from a word to those that it attends to.
function showLines(text, from, lines) {
  const box = text.getBoundingClientRect();
  const middle = (made) => {
    const [{ left, top, width, height }] = made.getClientRects();
    return [left + width / 2 - box.left, top + height / 4 - box.top];
  };
  const [x, y] = middle(from);
  const paths = lines.filter(([made]) => made !== from).map(([made, share]) => {
    const [to, height] = middle(made);
    const above = (y + height) / 2 - 12 - Math.abs(x - to) / 10;
    return drawing("path", {
      d: `M${x} ${y} Q${(x + to) / 2} ${above} ${to} ${height}`,
      "stroke-width": 1 + 5 * share,
      "stroke-opacity": 0.2 + 0.8 * strength(share),
    });
  });
  text.querySelector("svg").replaceChildren(...paths);
}

function barRow(label, share, colour, attributes = {}) {
  return element("tr", attributes,
    element("td", {}, label),
    element("td", { class: "number" }, percent(share)),
    element("td", {}, element("i", { style: { "--share": share, "--bar-colour": colour } })));
}

function showExpected(run, section) {
  const [step, position] = [stepOf(run), place(run)];
  const [actual, bits] = [run.tokens[position], tokenBits(run, step, position)];
  const rank = run.ranks[step * run.tokens.length + position];
  const several = positions(run, chosen.word).length > 1;
  const expected = expectedAt(run, position);
  const came = expected.findIndex(({ index }) => index === run.inVocabulary[position]);
  const rows = expected.map(({ token, share }, k) =>
    k === came ? barRow(`${token} ✓`, share, "var(--hot)", { class: "actual" }) : barRow(token, share, "var(--hot)"));
  if (came < 0) rows.push(barRow(`${actual} ✓`, 2 ** -bits, "var(--hot)", { class: "actual" }));
  const name = data.runs.length > 1 ? `${run.name}: ` : "";
  const whole = `${wordBits(run, step, chosen.word).toFixed(2)} bits`;
  const ranked = `rank ${number(rank)}`;
  if (!section.firstChild)
    section.append(...["p", "div", "p", "table"].map((each) => element(each)));
  const [about, tokens, token, table] = section.children;
  about.textContent = `${name}${whole}${several ? "" : `, ${ranked}`}`;
  token.textContent = several ? `“${actual}”: ${bits.toFixed(2)} bits, ${ranked}` : "";
  showTokens(run, tokens);
  table.className = "bars";
  table.replaceChildren(
    element("caption", {}, "Likeliest tokens here; ✓: what came"), element("tbody", {}, ...rows));
}

// The tokens of the word, each with its bits; the buttons stay while the word does.
function showTokens(run, group) {
  const found = positions(run, chosen.word);
  if (group.dataset.word !== String(chosen.word)) {
    const made = element("div", { class: "tokens", "data-word": chosen.word });
    if (found.length > 1) {
      made.append(...found.map((position) =>
        element("button", { type: "button" }, run.tokens[position], " ", element("small"))));
      made.setAttribute("aria-label", `Tokens in ${run.name}`);
      radios(made, [...made.children], 1, (token) => change({ token, kept: true }));
    }
    group.replaceWith(made);
    group = made;
  }
  const buttons = [...group.children];
  buttons.forEach((button, k) => {
    button.lastChild.textContent = tokenBits(run, stepOf(run), found[k]).toFixed(1);
  });
  check(buttons, tokenOf(run));
}

// --- attention ---------------------------------------------------------------------

// Each row is a token that attends, each column one attended to. Weights that the page
// does not hold are drawn as their mean.
function drawMap(canvas, run, layer, head, most) {
  const count = run.tokens.length;
  const size = Math.min(count, most);
  const pixel = (position) => Math.floor((position * size) / count);
  const shares = new Float32Array(size * size); // the largest in each pixel
  for (let position = 0; position < count; position += 1) {
    const row = pixel(position) * size;
    const draw = (column, share) => (shares[row + column] = Math.max(shares[row + column], share));
    const found = attendedAt(run, layer, head, position);
    const others = position + 1 - run.begins[position] - found.length;
    const mean = Math.max(0, restOf(found)) / Math.max(1, others);
    for (let column = pixel(run.begins[position]); column <= pixel(position); column += 1) draw(column, mean);
    for (const each of found) draw(pixel(each.position), each.share);
  }
  const colour = parseInt(getComputedStyle(canvas).getPropertyValue("--cold").trim().slice(1), 16);
  const image = new ImageData(size, size);
  shares.forEach((share, at) =>
    image.data.set([colour >> 16, (colour >> 8) & 255, colour & 255, 255 * strength(share)], 4 * at));
  [canvas.width, canvas.height] = [size, size];
  canvas.getContext("2d", { willReadFrequently: true }).putImageData(image, 0, 0);
}

const where = (source, position) => (source === position ? " (itself)" : ` (${position - source} before)`);

function makeAttention(run, section) {
  section.append(element("h3", {}, "Attention"));
  if (!run.layers) {
    section.append(element("p", {}, `${run.name}: an LSTM has none.`));
    return;
  }
  const label = (text) => element("span", { "aria-hidden": "true" }, text);
  const heads = element("div", {
    class: "heads",
    "aria-label": `Heads of ${run.name}`,
    style: { "grid-template-columns": `auto repeat(${run.heads}, 1fr)` },
  }, label("layer"), ...Array.from({ length: run.heads }, (_, k) => label(`head ${k + 1}`)));
  const buttons = [];
  for (let layer = 0; layer < run.layers; layer += 1) {
    heads.append(label(layer + 1));
    for (let head = 0; head < run.heads; head += 1) {
      buttons.push(element("button", { type: "button" }, element("canvas", { "aria-hidden": "true" }), element("span")));
      heads.append(buttons.at(-1));
    }
  }
  radios(heads, buttons, run.heads, (each) =>
    change({ layer: Math.floor(each / run.heads), head: each % run.heads, kept: true }));
  const canvas = element("canvas", { role: "img" });
  const pointed = element("p", { class: "about" },
    "The map of this head; the chosen token's row is framed. Point at a place to read it.");
  section.append(
    element("p", { class: "about" }, "Each head as a map: a row for each token of the text, with what it attends to in the columns. Below, the largest weight of the chosen token."),
    element("div", { class: "scroller" }, heads),
    element("h3"),
    element("table", { class: "bars" }),
    element("div", { class: "map" }, canvas, element("i")),
    pointed);
  const tokenAt = (offset) =>
    Math.max(0, Math.min(run.tokens.length - 1, Math.floor((offset / canvas.clientWidth) * run.tokens.length)));
  canvas.addEventListener("pointermove", (event) => {
    const [row, column] = [tokenAt(event.offsetY), tokenAt(event.offsetX)];
    const found = attendedAt(run, ...headOf(run), row).find((each) => each.position === column);
    const share = found ? percent(found.share) : column > row ? "nothing, as it comes later" : "less than the weights kept here";
    pointed.textContent = `“${run.tokens[row]}” to “${run.tokens[column]}”${column > row ? "" : where(column, row)}: ${share}`;
  });
  canvas.addEventListener("click", (event) => {
    const row = tokenAt(event.offsetY);
    const word = run.spans.findIndex(([first, stop]) => first <= row && row < stop);
    if (word >= 0) change({ word, token: row - run.spans[word][0], kept: true });
  });
}

function showAttention(run, section) {
  const position = place(run);
  const [layer, head] = headOf(run);
  const step = run.steps[Math.max(stepOf(run), run.steps.length - run.attentionSteps)];
  const name = data.runs.length > 1 ? `, ${run.name}` : "";
  const [title, , , subtitle, table, map] = section.children;
  title.textContent = `Attention after ${number(step)} updates${name}`;
  const buttons = [...section.querySelectorAll(".heads button")];
  const colour = getComputedStyle(section).getPropertyValue("--cold");
  buttons.forEach((button, each) => {
    const [i, j] = [Math.floor(each / run.heads), each % run.heads];
    const [most] = attendedAt(run, i, j, position);
    const drawn = `${step} ${colour}`;
    if (button.dataset.drawn !== drawn) drawMap(button.firstChild, run, i, j, MOST_PIXELS.head);
    button.dataset.drawn = drawn;
    button.lastChild.textContent = percent(most.share);
    const text = `layer ${i + 1}, head ${j + 1}: ${percent(most.share)} to ${run.tokens[most.position]}${where(most.position, position)}`;
    button.setAttribute("aria-label", text);
    button.title = text;
  });
  check(buttons, layer * run.heads + head);
  subtitle.textContent = `Layer ${layer + 1}, head ${head + 1}: “${run.tokens[position]}” attends to`;
  const found = attendedAt(run, layer, head, position);
  const rows = found.map((each) =>
    barRow(`${run.tokens[each.position]}${where(each.position, position)}`, each.share, "var(--cold)"));
  if (found.length < position + 1) rows.push(barRow("all others", Math.max(restOf(found), 0), "var(--soft)"));
  table.replaceChildren(element("tbody", {}, ...rows));
  const canvas = map.firstChild;
  drawMap(canvas, run, layer, head, MOST_PIXELS.map);
  canvas.setAttribute("aria-label", `Map of layer ${layer + 1}, head ${head + 1} over all ${run.tokens.length} tokens`);
  map.lastChild.style.top = `${(100 * position) / run.tokens.length}%`;
  map.lastChild.style.height = `${100 / run.tokens.length}%`;
}

// --- layers, training ----------------------------------------------------------------

function showLayers(run, section) {
  const name = data.runs.length > 1 ? `, ${run.name}` : "";
  section.replaceChildren(
    element("h3", {}, `Similarity of layers${name}`),
    element("div", { class: "scroller" }, similarityTable(run)));
  const sample = run.samples[stepOf(run)];
  if (sample) section.append(element("h3", {}, `Sampled in training${name}`), element("blockquote", { dir: "auto" }, sample));
}

function similarityTable(run) {
  const count = run.numStates;
  const name = (i) => (i ? i : "emb.");
  const start = stepOf(run) * count * count;
  const rows = Array.from({ length: count }, (_, i) => element("tr", {},
    element("th", { scope: "row" }, name(i)),
    ...Array.from({ length: count }, (_, j) => {
      const value = run.similarity[start + i * count + j];
      return element("td", { style: { "--share": Math.max(0, value) } }, value.toFixed(2));
    })));
  const header = element("tr", {}, element("th", { scope: "col" }, "layer"),
    ...Array.from({ length: count }, (_, j) => element("th", { scope: "col" }, name(j))));
  return element("table", { class: "heat" },
    element("caption", {}, "The mean cosine of a token's states in two layers; emb.: before the first."),
    element("thead", {}, header), element("tbody", {}, ...rows));
}

// The surprisal of the chosen word over the saved steps, which stand side by side.
function showCurve() {
  const box = document.querySelector(".curve");
  const [left, right, top, bottom] = [30, 12, 8, 150];
  const width = box.clientWidth - left - right;
  const curves = data.runs.map((run) => run.steps.map((_, k) => wordBits(run, k, chosen.word)));
  const most = Math.max(1, ...curves.flat());
  const x = (step) => left + (steps.length > 1 ? (steps.indexOf(step) / (steps.length - 1)) * width : width / 2);
  const y = (bits) => bottom - ((bottom - top) * bits) / most;
  const svg = drawing("svg", { role: "img" });
  for (const bits of [0, most / 2, most]) {
    svg.append(drawing("line", { class: "axis", x1: left, x2: left + width, y1: y(bits), y2: y(bits) }),
      drawing("text", { x: left - 5, y: y(bits) + 4, "text-anchor": "end" }, bits.toFixed(bits < 10 ? 1 : 0)));
  }
  const every = Math.ceil((steps.length * 52) / Math.max(width, 1));
  steps.forEach((step, k) => {
    if (k % every) return;
    svg.append(drawing("text", { x: x(step), y: bottom + 18, "text-anchor": k ? "middle" : "start" }, number(step)));
  });
  const now = x(steps[chosen.step]);
  svg.append(drawing("line", { class: "now", x1: now, x2: now, y1: top, y2: bottom }));
  const legend = element("p", { class: "about" }, "Surprisal of the word over updates, in bits");
  const described = data.runs.map((run, index) => {
    // Sixteen runs differ by colour or dashes.
    const look = {
      stroke: COLOURS[(index + Math.floor(index / DASHES.length)) % COLOURS.length],
      "stroke-dasharray": DASHES[index % DASHES.length],
    };
    const points = run.steps.map((step, k) => [x(step), y(curves[index][k])]);
    svg.append(drawing("polyline", { points: points.join(" "), ...look }));
    for (const [cx, cy] of points) svg.append(drawing("circle", { cx, cy, r: 3, fill: look.stroke }));
    const text = `${run.name}, ${curves[index][0].toFixed(1)} to ${curves[index].at(-1).toFixed(1)}`;
    const line = drawing("svg", { viewBox: "0 0 40 10", "aria-hidden": "true" },
      drawing("polyline", { points: "1,5 39,5", ...look }));
    legend.append(index ? "; " : ": ", line, ` ${text}`);
    return text;
  });
  svg.setAttribute("aria-label", `Surprisal of the word over updates, in bits: ${described.join("; ")}.`);
  box.replaceChildren(svg, legend);
}

// --- pointer and keys --------------------------------------------------------------

// Changes what is chosen, and shows it; a word that is kept comes into sight.
function change(values) {
  if ("word" in values) values.word = Math.max(0, Math.min(words.length - 1, values.word));
  Object.assign(chosen, "word" in values ? { token: 0 } : {}, values);
  show();
  if (!chosen.kept || !("word" in values)) return;
  const read = texts.find((text) => text.contains(document.activeElement)) ?? texts[0];
  document.getElementById(read.getAttribute("aria-activedescendant")).scrollIntoView({ block: "nearest" });
}

const wordOf = (event) => {
  const found = event.target.closest(".word");
  return found ? Number(found.id.split("word")[1]) : null;
};
let reading = texts[0]; // where the focus returns to

for (const text of texts) {
  text.addEventListener("focus", () => (reading = text));
  text.addEventListener("pointerover", (event) => {
    const word = wordOf(event);
    if (event.pointerType === "touch" || word === null || chosen.kept || word === chosen.word) return;
    change({ word });
  });
  text.addEventListener("click", (event) => {
    const word = wordOf(event);
    if (word !== null) change({ word, kept: !(chosen.kept && word === chosen.word) });
  });
  text.addEventListener("keydown", (event) => {
    if (isShortcut(event)) return;
    const word = { ArrowLeft: chosen.word - 1, ArrowRight: chosen.word + 1, Home: 0, End: words.length - 1 }[event.key];
    const step = { ArrowUp: chosen.step + 1, ArrowDown: chosen.step - 1 }[event.key];
    if (word !== undefined) change({ word, kept: true });
    else if (step !== undefined) change({ step: Math.max(0, Math.min(steps.length - 1, step)) });
    else if (event.key === "Enter" || event.key === " ") change({ kept: !chosen.kept });
    else return;
    event.preventDefault();
  });
}
function letGo() {
  if (document.querySelector(".panel").contains(document.activeElement)) reading.focus();
  change({ kept: false });
}
document.querySelector(".close").addEventListener("click", letGo);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") letGo();
});
slider.addEventListener("input", () => change({ step: Number(slider.value) }));
document.getElementById("colours").addEventListener("change", show);
window.addEventListener("resize", show);
for (const media of ["print", "(prefers-color-scheme: dark)"])
  window.matchMedia(media).addEventListener("change", show);
const controls = document.querySelector(".controls");
new ResizeObserver(() =>
  document.documentElement.style.setProperty("--bar", `${controls.offsetHeight}px`)).observe(controls);

data.runs.forEach((run, index) => makeAttention(run, sections("attended")[index]));
const last = words.map((_, word) => wordBits(data.runs[0], data.runs[0].steps.length - 1, word));
change({ word: last.indexOf(Math.max(...last)) });
