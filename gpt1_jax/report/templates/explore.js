"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const steps = [...new Set(data.runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
const words = data.lines.flat();
const MOST_BITS = 16; // the strongest colour
const LINES = [["var(--cold)", ""], ["var(--hot)", "6 3"], ["var(--ink)", "2 2"], ["var(--soft)", "8 3 2 3"]];
// What is chosen: a word and one of its tokens, a head; whether the pointer leaves it so.
const chosen = { step: steps.length - 1, word: 0, token: 0, layer: 0, head: 0, kept: false };

// --- the data of a run at a step -------------------------------------------------

const unpack = (text, Type) =>
  new Type(Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0)).buffer);

for (const run of data.runs) {
  run.bits = unpack(run.bits, Float32Array);
  run.ranks = unpack(run.ranks, Uint32Array);
  run.nextTokens = unpack(run.nextTokens, Uint16Array);
  run.nextProbs = unpack(run.nextProbs, Uint16Array);
  run.sources = unpack(run.sources, Uint16Array);
  run.weights = unpack(run.weights, Uint8Array);
  run.similarity = unpack(run.similarity, Float32Array);
  const size = run.layers * run.heads * run.tokens.length * run.numSources;
  run.attentionSteps = size ? run.sources.length / size : 0;
}

// The newest of a run's own steps that has been reached; its first before that.
const stepOf = (run) =>
  Math.max(0, run.steps.findLastIndex((step) => step <= steps[chosen.step]));
const bitsAt = (run, step, word) => run.bits[step * words.length + word];
// The place in the text of the chosen token.
const place = (run) => {
  const [first, stop] = run.spans[chosen.word];
  return Math.min(first + chosen.token, stop - 1);
};

function expectedAt(run, position) {
  const start = (stepOf(run) * run.tokens.length + position) * run.numNext;
  return Array.from({ length: run.numNext }, (_, k) => ({
    token: run.vocabulary[run.nextTokens[start + k]],
    share: run.nextProbs[start + k] / 65535,
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
    share: run.weights[start + k] / 255,
  })).filter((each) => each.share > 0);
}

// --- elements --------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "share") made.style.setProperty("--share", value);
    else if (key === "bar") made.style.setProperty("--bar", value);
    else if (key === "onclick") made.addEventListener("click", value);
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

const percent = (share) =>
  share < 0.0995 ? `${(100 * share).toFixed(1)}%` : `${Math.round(100 * share)}%`;
const texts = [...document.querySelectorAll(".text")];
const wordId = (run, word) => `run${run}word${word}`;

texts.forEach((text, number) => {
  let word = 0;
  for (const line of data.lines) {
    const paragraph = element("p", {}, element("span", { class: "start", "aria-hidden": "true" }, "↵"));
    for (const each of line) {
      const id = wordId(number, word);
      paragraph.append(" ", element("span", { class: "word", role: "option", id, dir: "auto" }, each));
      word += 1;
    }
    text.append(paragraph);
  }
});

// --- what is shown ---------------------------------------------------------------

function show() {
  document.getElementById("step").textContent = steps[chosen.step].toLocaleString("en");
  const slider = document.getElementById("steps");
  slider.value = chosen.step;
  slider.setAttribute("aria-valuetext", `after ${steps[chosen.step]} updates`);
  data.runs.forEach((run, number) => {
    showText(run, number);
    showExpected(run, document.querySelectorAll(".expected")[number]);
    showLayers(run, document.querySelectorAll(".layers")[number]);
  });
  document.querySelector(".chosen").textContent = words[chosen.word];
  document.querySelector(".place").textContent = `word ${chosen.word + 1} of ${words.length}`;
  showTokens();
  showCurve();
}

function showText(run, number) {
  const byAttention = document.getElementById("colours").value === "attention";
  const text = texts[number];
  const step = stepOf(run);
  const attended = new Map();
  if (byAttention && run.layers) {
    const [layer, head] = [Math.min(chosen.layer, run.layers - 1), Math.min(chosen.head, run.heads - 1)];
    for (const each of attendedAt(run, layer, head, place(run))) attended.set(each.position, each.share);
  }
  let sum = 0;
  words.forEach((word, index) => {
    const bits = bitsAt(run, step, index);
    sum += bits;
    const made = document.getElementById(wordId(number, index));
    let share = Math.min(bits / MOST_BITS, 1);
    if (byAttention) {
      const [first, stop] = run.spans[index];
      share = 0;
      for (let token = first; token < stop; token += 1) share += attended.get(token) ?? 0;
    }
    made.style.setProperty("--share", share);
    made.setAttribute("aria-selected", index === chosen.word);
    made.setAttribute("aria-label", `${word}, ${bits.toFixed(1)} bits`);
  });
  let first = 0;
  text.querySelectorAll(".start").forEach((start, line) => {
    const newline = run.spans[first][0] - 1;
    start.style.setProperty("--share", attended.get(newline) ?? 0);
    first += data.lines[line].length;
  });
  text.classList.toggle("attention", byAttention);
  text.classList.toggle("kept", chosen.kept);
  text.setAttribute("aria-activedescendant", wordId(number, chosen.word));
  text.closest("section").querySelector(".mean").textContent =
    `${(sum / words.length).toFixed(2)} bits per word after ${run.steps[step].toLocaleString("en")} updates.`;
}

function showTokens() {
  const tokens = document.querySelector(".tokens");
  const [first, stop] = data.runs[0].spans[chosen.word];
  const several = data.runs.some((run) => run.spans[chosen.word][1] - run.spans[chosen.word][0] > 1);
  tokens.replaceChildren();
  if (!several) return;
  tokens.append("Token:");
  for (let token = first; token < stop; token += 1) {
    const choose = () => Object.assign(chosen, { token: token - first, kept: true }) && show();
    const pressed = token - first === Math.min(chosen.token, stop - first - 1);
    tokens.append(element("button", { type: "button", "aria-pressed": pressed, onclick: choose }, data.runs[0].tokens[token]));
  }
}

function barRow(label, share, bar, attributes = {}) {
  return element("tr", attributes,
    element("td", {}, label),
    element("td", { class: "number" }, percent(share)),
    element("td", {}, element("i", { share, bar })));
}

function showExpected(run, section) {
  const position = place(run);
  const actual = run.tokens[position];
  const rows = expectedAt(run, position - 1).map(({ token, share }) =>
    barRow(token, share, "var(--hot)", token === actual ? { class: "actual" } : {}));
  const step = stepOf(run);
  const index = step * words.length + chosen.word;
  const name = data.runs.length > 1 ? `${run.name}: ` : "";
  section.replaceChildren(
    element("p", {}, `${name}${run.bits[index].toFixed(2)} bits, rank ${run.ranks[index].toLocaleString("en")}`),
    element("table", { class: "bars" },
      element("caption", {}, `Expected instead of “${actual}”`),
      element("tbody", {}, ...rows)));
}

function showLayers(run, section) {
  section.replaceChildren();
  const position = place(run);
  if (run.layers) {
    const [layer, head] = [Math.min(chosen.layer, run.layers - 1), Math.min(chosen.head, run.heads - 1)];
    const step = run.attentionSteps < run.steps.length ? ` at step ${run.steps.at(-1).toLocaleString("en")}` : "";
    const header = element("tr", {}, element("th", { scope: "col" }, "layer"),
      ...Array.from({ length: run.heads }, (_, k) => element("th", { scope: "col" }, `head ${k + 1}`)));
    const rows = Array.from({ length: run.layers }, (_, i) => element("tr", {},
      element("th", { scope: "row" }, i + 1),
      ...Array.from({ length: run.heads }, (_, j) => headCell(run, i, j, position, i === layer && j === head))));
    const sources = attendedAt(run, layer, head, position).map((each) =>
      barRow(`${run.tokens[each.position]}${where(each.position, position)}`, each.share, "var(--cold)"));
    section.append(
      element("h3", {}, `Attention of “${run.tokens[position]}”${step}`),
      element("div", {}, element("table", { class: "heat" },
        element("caption", {}, "The largest weight of each head, in per cent."),
        element("thead", {}, header), element("tbody", {}, ...rows))),
      element("table", { class: "bars" },
        element("caption", {}, `Layer ${layer + 1}, head ${head + 1} attends most to`),
        element("tbody", {}, ...sources)));
  } else {
    section.append(element("h3", {}, "Attention"), element("p", {}, "An LSTM has none."));
  }
  section.append(element("h3", {}, "Similarity of layers"), element("div", {}, similarityTable(run)));
  const sample = run.samples[stepOf(run)];
  if (sample) section.append(element("h3", {}, "Sampled in training"), element("blockquote", { dir: "auto" }, sample));
}

const where = (source, position) => (source === position ? " (itself)" : ` (${position - source} before)`);

function headCell(run, layer, head, position, pressed) {
  const [most] = attendedAt(run, layer, head, position);
  const choose = () => Object.assign(chosen, { layer, head, kept: true }) && show();
  const label = `layer ${layer + 1}, head ${head + 1}: ${percent(most.share)} to ${run.tokens[most.position]}`;
  const button = element("button", { type: "button", "aria-pressed": pressed, "aria-label": label, title: label, onclick: choose },
    Math.round(100 * most.share));
  return element("td", { share: most.share }, button);
}

function similarityTable(run) {
  const count = run.numStates;
  const name = (i) => (i ? i : "emb.");
  const start = stepOf(run) * count * count;
  const rows = Array.from({ length: count }, (_, i) => element("tr", {},
    element("th", { scope: "row" }, name(i)),
    ...Array.from({ length: count }, (_, j) => {
      const value = run.similarity[start + i * count + j];
      return element("td", { share: Math.max(0, value) }, value.toFixed(2));
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
  const most = Math.max(1, ...data.runs.flatMap((run) => run.steps.map((_, k) => bitsAt(run, k, chosen.word))));
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
    svg.append(drawing("text", { x: x(step), y: bottom + 18, "text-anchor": k ? "middle" : "start" }, step.toLocaleString("en")));
  });
  const now = x(steps[chosen.step]);
  svg.append(drawing("line", { class: "now", x1: now, x2: now, y1: top, y2: bottom }));
  data.runs.forEach((run, number) => {
    const [stroke, dashes] = LINES[number % LINES.length];
    const points = run.steps.map((step, k) => [x(step), y(bitsAt(run, k, chosen.word))]);
    svg.append(drawing("polyline", { points: points.join(" "), stroke, "stroke-dasharray": dashes }));
    for (const [cx, cy] of points) svg.append(drawing("circle", { cx, cy, r: 3, fill: stroke }));
  });
  const names = data.runs.map((run, number) => {
    const [first, last] = [0, run.steps.length - 1].map((k) => bitsAt(run, k, chosen.word).toFixed(1));
    return `${data.runs.length > 1 ? `${number ? "dashed" : "solid"}: ${run.name}, ` : ""}${first} to ${last} bits`;
  });
  svg.setAttribute("aria-label", `Surprisal of the word over updates. ${names.join("; ")}.`);
  box.replaceChildren(svg, element("p", { class: "about" }, `Surprisal over updates, bits. ${names.join("; ")}.`));
}

// --- pointer and keys --------------------------------------------------------------

const wordOf = (event) => {
  const found = event.target.closest(".word");
  return found ? Number(found.id.split("word")[1]) : null;
};
const choose = (word) => Object.assign(chosen, { word: Math.max(0, Math.min(words.length - 1, word)), token: 0 });

for (const text of texts) {
  text.addEventListener("pointerover", (event) => {
    const word = wordOf(event);
    if (word === null || chosen.kept || word === chosen.word) return;
    choose(word);
    show();
  });
  text.addEventListener("click", (event) => {
    const word = wordOf(event);
    if (word === null) return;
    chosen.kept = !(chosen.kept && word === chosen.word);
    choose(word);
    show();
  });
  text.addEventListener("keydown", (event) => {
    const word = { ArrowLeft: chosen.word - 1, ArrowRight: chosen.word + 1, Home: 0, End: words.length - 1 }[event.key];
    const step = { ArrowUp: chosen.step + 1, ArrowDown: chosen.step - 1 }[event.key];
    if (word !== undefined) Object.assign(choose(word), { kept: true });
    else if (step !== undefined) chosen.step = Math.max(0, Math.min(steps.length - 1, step));
    else if (event.key === "Escape") chosen.kept = false;
    else return;
    event.preventDefault();
    show();
  });
}
const slider = document.getElementById("steps");
slider.max = steps.length - 1;
slider.addEventListener("input", () => {
  chosen.step = Number(slider.value);
  show();
});
document.getElementById("colours").addEventListener("change", show);
window.addEventListener("resize", showCurve);
const bits = words.map((_, word) => bitsAt(data.runs[0], data.runs[0].steps.length - 1, word));
choose(bits.indexOf(Math.max(...bits)));
show();
