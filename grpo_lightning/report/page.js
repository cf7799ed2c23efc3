
"use strict";
(() => {
  // Whatever comes from the data is set as textContent, or handed to Plotly through plain(): never as HTML.
  const data = JSON.parse(document.getElementById("data").textContent);
  const id = (name) => document.getElementById(name);
  const COLOURS = {
    light: ["#0072B2", "#D55E00", "#009E73", "#AA4499", "#B8860B", "#3A9BD9", "#000000", "#7F7F7F"],
    dark: ["#56B4E9", "#FF8C42", "#2CC295", "#E38FC8", "#E6C229", "#8DA9FF", "#FFFFFF", "#A0A0A0"],
  };
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const SVG_DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };
  // Hours are minutes where none of the runs took two of them.
  const short = !data.runs.some((run) => (run.clocks.hours || []).some((hours) => hours > 2));
  if (short) for (const run of data.runs) if (run.clocks.hours) run.clocks.hours = run.clocks.hours.map((hours) => 60 * hours);
  const CLOCKS = { step: "optimizer steps", tokens: "tokens, prompts included", hours: (short ? "minutes" : "hours") + " of training steps" };
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const single = data.runs.length === 1;
  const hidden = new Set();
  const charts = [];

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "text") made.textContent = value;
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  // Plotly reads tags and entities in its texts.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  // Control characters as their pictures, and text directions that would turn a line around as escapes.
  const visible = (text) =>
    String(text)
      .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
      .replace(/[\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
  const palette = () => COLOURS[darkness.matches ? "dark" : "light"];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clock = () => document.querySelector("input[name=clock]:checked").value;

  // --- curves --------------------------------------------------------------------------------------------------

  // Exponential moving average, corrected for its start at 0, over the values that are there.
  function smoothed(values, weight) {
    let mean = 0;
    return values.map((value, i) => {
      mean = weight * mean + (1 - weight) * value;
      return mean / (1 - weight ** (i + 1));
    });
  }

  function points(run, column) {
    const places = run.clocks[clock()], values = run.columns[column] || [], x = [], y = [];
    for (let i = 0; places && i < values.length; i++) {
      if (values[i] !== null && places[i] !== null) { x.push(places[i]); y.push(values[i]); }
    }
    return [x, y];
  }

  function traces(panel) {
    const weight = Number(id("smoothing").value), drawn = [], columns = Object.keys(panel.lines);
    data.runs.forEach((run, r) => {
      if (hidden.has(r)) return;
      columns.forEach((column, c) => {
        let [x, y] = points(run, column);
        if (!x.length) return;
        y = y.map((value) => panel.scale * value);
        const colour = palette()[(single ? c : r) % 8];
        const dash = DASHES[(single ? Math.floor(c / 8) : c + Math.floor(r / 8)) % 5];
        const name = plain((single ? [] : [run.name]).concat(columns.length > 1 || single ? [panel.lines[column]] : []).join(", "));
        const few = x.length < 12, line = { color: colour, dash, width: 2 };
        const common = { x, name, type: "scatter", mode: few ? "lines+markers" : "lines", marker: { size: 5, color: colour } };
        const smooth = weight > 0 && !few;
        if (smooth) drawn.push({ ...common, y, line: { ...line, width: 1, dash: "solid" }, opacity: 0.4, hoverinfo: "skip" });
        drawn.push({ ...common, y: smooth ? smoothed(y, weight) : y, line, hovertemplate: "%{y:.4~g}<extra>%{fullData.name}</extra>" });
      });
    });
    return drawn;
  }

  function accuracyTraces() {
    const drawn = [];
    data.runs.forEach((run, r) => {
      if (hidden.has(r)) return;
      Object.entries(run.accuracy).forEach(([source, lines], s) => {
        const steps = run.clocks.step || [], places = run.clocks[clock()];
        const at = (step) => {
          if (clock() === "step") return step;
          if (!places) return null;
          let i = steps.findLastIndex((other) => other <= step);
          return i < 0 ? 0 : places[i];
        };
        const colour = palette()[(single ? s : r) % 8];
        drawn.push({
          x: lines.map((line) => at(line[0])), y: lines.map((line) => line[1]), type: "scatter", mode: "lines+markers",
          name: plain((single ? [source] : [run.name, source]).join(", ")),
          line: { color: colour, width: 2, dash: DASHES[(single ? 0 : s) % 5] }, marker: { size: 6, color: colour },
          error_y: { type: "data", symmetric: false, array: lines.map((l) => l[3] - l[1]), arrayminus: lines.map((l) => l[1] - l[2]), thickness: 1.2, width: 3, color: colour },
          hovertemplate: "%{y:.1f}% at %{x}<extra>%{fullData.name}</extra>",
        });
      });
    });
    return drawn;
  }

  function decades(lines) {
    const known = lines.flatMap((line) => line.y).filter((value) => value > 0);
    return Math.log10(known.reduce((a, b) => Math.max(a, b), 1e-300) / known.reduce((a, b) => Math.min(a, b), 1e300));
  }

  // Of what hardly changes Plotly would show its rounding errors; a share begins at 0.
  function range(panel, lines) {
    if (panel.accuracy) return { range: [0, 102] };
    let low = Infinity, high = -Infinity;
    for (const line of lines) for (const value of line.y) { low = Math.min(low, value); high = Math.max(high, value); }
    if (high === 0 && low === 0) return { range: [0, 1] };
    if (high - low <= 1e-6 * Math.abs(high)) return { range: high > 0 ? [0, 1.5 * high] : [1.5 * low, 0] };
    return panel.scale === 100 ? { rangemode: "tozero" } : {};
  }

  function layout(panel, lines) {
    const axis = { gridcolor: style("--grid"), linecolor: style("--line"), zerolinecolor: style("--line"), automargin: true, tickfont: { size: 11 }, title: { font: { size: 12 }, standoff: 8 } };
    return {
      autosize: true, height: 250, margin: { l: 52, r: 14, t: 10, b: 40 }, showlegend: false, hovermode: "x",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, 'Liberation Sans', sans-serif", size: 12, color: style("--ink") },
      hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--ink"), size: 12 }, namelength: 40 },
      xaxis: { ...axis, title: { ...axis.title, text: CLOCKS[clock()] }, nticks: 6, rangemode: "tozero" },
      yaxis: {
        ...axis, title: { ...axis.title, text: plain(panel.unit) }, nticks: 6, type: panel.log ? "log" : "linear",
        exponentformat: "power", ...(panel.log ? (decades(lines) < 2 ? { dtick: "D2", tickformat: ".0e" } : { dtick: 1 }) : { tickformat: "~g", ...range(panel, lines) }),
      },
    };
  }

  function draw(chart) {
    const lines = chart.panel.accuracy ? accuracyTraces() : traces(chart.panel);
    const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], displayModeBar: false };
    Plotly.react(chart.plot, lines, layout(chart.panel, lines), options);
  }

  const redraw = () => charts.forEach(draw);

  function sampleOfLine(colour, dash) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(svg.namespaceURI, "line");
    svg.setAttribute("width", "26"); svg.setAttribute("height", "8");
    for (const [name, value] of Object.entries({ x1: 0, x2: 26, y1: 4, y2: 4, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": SVG_DASHES[dash] })) line.setAttribute(name, value);
    svg.append(line);
    return svg;
  }

  function fillLegend(chart) {
    const labels = Object.values(chart.panel.lines);
    chart.legend.replaceChildren();
    if (labels.length < 2) return;
    labels.forEach((label, c) => {
      const colour = single ? palette()[c % 8] : style("--quiet"), dash = single ? "solid" : DASHES[c % 5];
      chart.legend.append(element("span", {}, sampleOfLine(colour, dash), element("bdi", { text: label })));
    });
  }

  function addChart(place, panel) {
    const plot = element("div", { class: "plot" }), legend = element("div", { class: "legend" });
    place.append(element("figure", { class: "chart", style: "margin:0" }, element("h4", { text: panel.title }), legend, plot));
    const chart = { panel, plot, legend };
    charts.push(chart);
    fillLegend(chart);
    draw(chart);
    return chart;
  }

  function fillRunLegend() {
    const place = id("run-legend");
    place.replaceChildren();
    if (single) return;
    data.runs.forEach((run, r) => {
      const box = element("input", { type: "checkbox" });
      box.checked = !hidden.has(r);
      box.addEventListener("change", () => { if (box.checked) hidden.delete(r); else hidden.add(r); redraw(); });
      place.append(element("label", {}, element("span", {}, box, sampleOfLine(palette()[r % 8], DASHES[Math.floor(r / 8) % 5]), element("bdi", { text: run.name }))));
    });
  }

  function sources() {
    return [...new Set(data.runs.flatMap((run) => Object.keys(run.accuracy)))];
  }

  function startCurves() {
    for (const box of document.querySelectorAll("input[name=clock]")) {
      box.disabled = !data.runs.some((run) => run.clocks[box.value]);
      box.addEventListener("change", redraw);
    }
    let waiting = false;
    id("smoothing").addEventListener("input", () => {
      id("smoothing-value").textContent = Number(id("smoothing").value).toFixed(2);
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; redraw(); });
    });
    fillRunLegend();
    const place = id("charts"), panels = [...data.panels];
    if (sources().length) {
      const lines = Object.fromEntries(sources().map((source) => [source, source]));
      panels.splice(1, 0, { title: "Greedy accuracy, held-out problems", unit: "%, with 95% intervals", lines, accuracy: true, scale: 1, log: false });
    }
    panels.forEach((panel) => addChart(place, panel));
    if (!panels.length) place.append(element("p", { text: "There are no figures yet." }));
    const shown = new Set(data.panels.flatMap((panel) => Object.keys(panel.lines)));
    const all = [...new Set(data.runs.flatMap((run) => Object.keys(run.columns)))].sort();
    const choice = id("any-figure");
    choice.append(element("option", { value: "", text: "choose one" }));
    all.filter((name) => !shown.has(name)).concat(all.filter((name) => shown.has(name))).forEach((name) => choice.append(element("option", { value: name, text: visible(name) })));
    let other = null;
    choice.addEventListener("change", () => {
      if (!choice.value) return;
      const panel = { title: choice.value, unit: "", lines: { [choice.value]: choice.value }, scale: 1, log: false };
      if (other === null) other = addChart(id("any-chart"), panel);
      else { other.panel = panel; other.plot.parentElement.querySelector("h4").textContent = panel.title; draw(other); }
    });
    darkness.addEventListener("change", () => { fillRunLegend(); charts.forEach(fillLegend); redraw(); });
  }

  // --- samples -------------------------------------------------------------------------------------------------

  const PAGE = 8;
  let shownGroups = PAGE;

  function fact(label, value, attributes = {}) {
    return element("span", attributes, label + " ", element("b", { text: visible(value) }));
  }

  function number(value, signed = false) {
    if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
    const text = String(Number.isInteger(value) ? value : Number(value.toPrecision(3)));
    return signed && value > 0 ? "+" + text : text;
  }

  function member(completion, matches) {
    const side = completion.advantage > 0 ? " better" : completion.advantage < 0 ? " worse" : "";
    const facts = element("div", { class: "facts" },
      fact("reward", number(completion.reward)), fact("advantage", number(completion.advantage, true)), fact("tokens", number(completion.tokens)));
    const terms = Object.entries(completion.terms);
    const more = element("div", { class: "facts" },
      completion.finish === "length" ? fact("", "cut by the length limit", { class: "cut" }) : fact("finish", number(completion.finish)),
      fact("answer read", completion.extracted === null ? "none" : completion.extracted));
    if (terms.length > 1) terms.forEach(([name, score]) => more.append(fact(visible(name), number(score))));
    Object.entries(completion.extras).forEach(([name, value]) => more.append(fact(visible(name), number(value))));
    return element("div", { class: "member" + side + (matches ? "" : " other") }, facts, more, element("pre", { text: visible(completion.text) }));
  }

  function groupCard(entry) {
    const { group, rollout, matches } = entry;
    const facts = element("div", { class: "facts" },
      fact("rollout", rollout.rollout), fact("step", number(rollout.step)), fact("group", number(group.group)),
      fact("source", `${group.source === null ? "–" : group.source}, row ${number(group.row)}`),
      fact("gold answer", group.answer === null ? "none" : group.answer), fact("prompt", `${number(group.prompt_tokens)} tokens`));
    return element("article", { class: "group" }, facts, element("pre", { class: "box prompt", text: visible(group.prompt) }),
      element("div", { class: "members" }, ...group.completions.map((completion, i) => member(completion, matches[i]))));
  }

  function found() {
    const run = data.runs[Number(id("sample-run").value)], wanted = id("sample-rollout").value;
    const words = id("sample-search").value.toLowerCase(), finish = id("finish").value;
    const bound = (name, otherwise) => (id(name).value === "" ? otherwise : Number(id(name).value));
    const low = bound("reward-low", null), high = bound("reward-high", null);
    const entries = [];
    for (const rollout of run ? run.rollouts : []) {
      if (wanted !== "all" && String(rollout.rollout) !== wanted) continue;
      for (const group of rollout.groups) {
        const about = [group.prompt, group.answer].some((text) => text !== null && String(text).toLowerCase().includes(words));
        const matches = group.completions.map((c) =>
          (low === null || (c.reward !== null && c.reward >= low)) && (high === null || (c.reward !== null && c.reward <= high)) &&
          (!finish || c.finish === finish) &&
          (about || c.text.toLowerCase().includes(words) || (c.extracted !== null && String(c.extracted).toLowerCase().includes(words))));
        if (matches.some(Boolean)) entries.push({ group, rollout, matches });
      }
    }
    return entries;
  }

  function showSamples() {
    const entries = found(), completions = entries.reduce((sum, entry) => sum + entry.matches.filter(Boolean).length, 0);
    const run = data.runs[Number(id("sample-run").value)];
    id("sample-count").textContent = run && run.rollouts.length
      ? `${completions} completions in ${entries.length} groups match; those that do not are faded.`
      : "This run has recorded no samples (--samples.every_n_rollouts), or they cannot be read.";
    id("groups").replaceChildren(...entries.slice(0, shownGroups).map(groupCard));
    for (const prompt of document.querySelectorAll(".prompt")) prompt.scrollTop = prompt.scrollHeight; // the question stands last
    id("more").hidden = entries.length <= shownGroups;
    const place = id("sample-rollout").selectedIndex;
    id("earlier").disabled = place <= 1;
    id("later").disabled = place < 1 || place >= id("sample-rollout").options.length - 1;
  }

  function fillRollouts() {
    const run = data.runs[Number(id("sample-run").value)], choice = id("sample-rollout");
    choice.replaceChildren(element("option", { value: "all", text: "all recorded" }));
    for (const rollout of run ? run.rollouts : []) choice.append(element("option", { value: rollout.rollout, text: `${rollout.rollout} (step ${number(rollout.step)})` }));
    choice.selectedIndex = choice.options.length - 1;
  }

  function startSamples() {
    data.runs.forEach((run, r) => id("sample-run").append(element("option", { value: r, text: visible(run.name) })));
    id("run-choice").hidden = single;
    id("sample-controls").hidden = !data.runs.some((run) => run.rollouts.length);
    const again = () => { shownGroups = PAGE; showSamples(); };
    id("sample-controls").addEventListener("submit", (event) => event.preventDefault());
    id("sample-run").addEventListener("change", () => { fillRollouts(); again(); });
    for (const name of ["sample-rollout", "finish"]) id(name).addEventListener("change", again);
    for (const name of ["sample-search", "reward-low", "reward-high"]) id(name).addEventListener("input", again);
    const move = (by) => { id("sample-rollout").selectedIndex += by; again(); };
    id("earlier").addEventListener("click", () => move(-1));
    id("later").addEventListener("click", () => move(1));
    id("more").addEventListener("click", () => { shownGroups += PAGE; showSamples(); });
    fillRollouts();
    showSamples();
  }

  startSamples();
  startCurves();
})();
