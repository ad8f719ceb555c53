"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const content = JSON.parse(byId("content").textContent);
  const run = content.run, against = content.against;
  const fits = Object.keys(run.rows);
  const first = (names) => (names.includes("default") ? "default" : names[0]);
  const state = { fit: first(fits), key: "rank", descending: false, query: "", allBars: false, open: null };
  const BARS = 20;

  /* Text only ever becomes text: no name of a model is parsed as markup. */
  function el(tag, properties, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") node.className = value;
      else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
    return node;
  }

  /* Numbers */
  const missing = (value) => value === null || value === undefined;
  const fixed = (digits) => (value) => (missing(value) ? "" : value.toFixed(digits));
  const db = fixed(1), percent = fixed(2);
  const signed = (value) => (missing(value) ? "" : `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(1)}`);
  const rate = (value) => (missing(value) ? "" : value === 0 ? "0" : value < 1e-3 ? value.toExponential(1) : value.toPrecision(2));
  const general = (value) => (missing(value) ? "" : typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value));
  const whole = (value) => (missing(value) ? "" : value.toLocaleString("en"));
  const millions = (value) => (missing(value) ? "" : value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : value >= 1e3 ? `${(value / 1e3).toFixed(1)} k` : String(value));
  const middle = (text, size) => (text.length <= size ? text : `${text.slice(0, Math.floor(size / 2) - 1)}…${text.slice(text.length - Math.ceil(size / 2))}`);

  /* Rows of the table: every layer of the run, then those that only the other run has. */
  const otherFit = () => (!against ? null : against.rows[state.fit] ? state.fit : first(Object.keys(against.rows)));
  const index = (rows) => new Map((rows || []).map((row, rank) => [row.layer, { ...row, rank: rank + 1 }]));
  function tableRows() {
    const here = index(run.rows[state.fit]), there = index(against && against.rows[otherFit()]);
    const names = [...new Set([...Object.keys(run.layers), ...Object.keys(against ? against.layers : {})])];
    return names.map((name) => {
      const layer = run.layers[name] || against.layers[name], row = here.get(name) || {}, other = there.get(name) || {};
      const change = missing(row.sqnr_db) || missing(other.sqnr_db) ? null : other.sqnr_db - row.sqnr_db;
      const kind = row.algorithm ? `${row.algorithm} ${row.bits}` : missing(row.error_percent) ? "float" : "weight";
      return { ...row, layer: name, op_type: layer.op_type, macs: layer.macs, reason: layer.reason, kind, other: other.error_percent, change, onlyThere: !run.layers[name] };
    });
  }

  /* The name without the type that it ends with, which says the least where space is short. */
  const stem = (name) => { const end = `/${(run.layers[name] || {}).op_type}`; return name.endsWith(end) && name.length > end.length ? name.slice(0, -end.length) : name; };
  const anyOf = (key) => fits.some((fit) => run.rows[fit].some((row) => !missing(row[key])));
  const COLUMNS = [
    { key: "rank", title: "#", cell: (row) => general(row.rank), hint: "place in the ranking" },
    { key: "layer", title: "Layer", text: true, cell: (row) => nameCell(row), style: "name-cell" },
    { key: "error_percent", title: "Error, %", cell: (row) => meter(row), worst: true, hint: "noise of data and weight over the signal" },
    against && { key: "other", title: "Other, %", cell: (row) => percent(row.other), worst: true, hint: "the same in the other run" },
    against && { key: "change", title: "Change, dB", cell: (row) => el("span", { class: row.change < 0 ? "worse" : row.change > 0 ? "better" : null }, signed(row.change)), hint: "of the signal-to-noise ratio, other run against this one" },
    { key: "data_db", title: "Data, dB", cell: (row) => db(row.data_db), style: "middle" },
    { key: "weight_db", title: "Weight, dB", cell: (row) => db(row.weight_db), style: "wide" },
    anyOf("isolated_db") && { key: "isolated_db", title: "Alone, dB", cell: (row) => db(row.isolated_db), style: "middle", hint: "output of the layer alone on its captured input" },
    anyOf("whole_db") && { key: "whole_db", title: "Output, dB", cell: (row) => db(row.whole_db), hint: "output of the model with this layer alone quantized" },
    { key: "clip_rate", title: "Clipped", cell: (row) => rate(row.clip_rate), style: "wide", worst: true, hint: "share of the values that the range clips" },
    { key: "kind", title: "Data as", text: true, cell: (row) => row.kind, style: "wide" },
    { key: "macs", title: "MACs", cell: (row) => millions(row.macs), style: "wide", worst: true, hint: "multiply-accumulates of one sample" },
  ].filter(Boolean);

  function nameCell(row) {
    const note = row.onlyThere ? "only in the other run" : row.reason && missing(row.error_percent) ? `in float: ${row.reason}` : null;
    const name = el("button", { type: "button", class: "name", "data-open": row.layer, onclick: (event) => { event.stopPropagation(); go(row.layer); } }, row.layer);
    return [name, el("span", { class: "type" }, [row.op_type, note].filter(Boolean).join(" · "))];
  }
  function meter(row) {
    if (missing(row.error_percent)) return "";
    return el("div", { class: "meter" }, el("i", { "aria-hidden": "true", style: { "--share": `${(100 * row.error_percent) / greatest}%` } }), percent(row.error_percent));
  }
  let greatest = 1;

  function shown() {
    const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = tableRows().filter((row) => {
      const text = `${row.layer} ${row.op_type} ${row.kind} ${row.reason || ""}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const sign = state.descending ? -1 : 1;
    return rows.sort((a, b) => {
      const x = a[state.key], y = b[state.key];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
    });
  }

  function drawHeads() {
    byId("heads").replaceChildren(...COLUMNS.map((column) => {
      const sorted = state.key === column.key ? (state.descending ? "descending" : "ascending") : null;
      const press = () => { state.descending = state.key === column.key ? !state.descending : Boolean(column.worst); state.key = column.key; drawHeads(); drawBody(); byId("heads").querySelector(`[data-sort="${column.key}"]`).focus(); };
      return el("th", { scope: "col", class: [column.style, column.text && "text"].filter(Boolean).join(" "), "aria-sort": sorted, title: column.hint }, el("button", { type: "button", "data-sort": column.key, onclick: press }, column.title));
    }));
  }
  function drawBody() {
    greatest = Math.max(1e-9, ...run.rows[state.fit].map((row) => row.error_percent || 0));
    const rows = shown(), total = tableRows().length;
    state.order = rows.map((row) => row.layer);
    byId("body").replaceChildren(...rows.map((row) => el("tr", { "data-row": row.layer, onclick: () => go(row.layer) },
      COLUMNS.map((column) => el("td", { class: [column.style, column.text && "text"].filter(Boolean).join(" ") }, column.cell(row))))));
    byId("count").textContent = rows.length === total ? `${total} layers` : `${rows.length} of ${total} layers`;
  }

  /* Charts */
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const inks = () => ({ inside: colour("accent"), clipped: colour("alert"), front: colour("accent"), beaten: colour("other"), "this run": colour("accent"), "other run": colour("other") });
  function painted(specification, colours) {
    const copy = JSON.parse(JSON.stringify(specification));
    for (const layer of copy.layer || [copy]) {
      const scale = layer.encoding && layer.encoding.color && layer.encoding.color.scale;
      if (scale) scale.range = scale.domain.map((name) => colours[name]);
      if (layer.mark && layer.mark.type === "tick") layer.encoding.color = { value: colour("other") };
      if (layer.mark && layer.mark.type === "bar" && !scale) layer.mark.color = colour("accent");
    }
    return copy;
  }
  function theme() {
    const ink = colour("ink"), soft = colour("soft"), hair = colour("hair"), font = colour("sans");
    return { background: "transparent", font, view: { stroke: null }, axis: { labelColor: ink, titleColor: soft, titleFontWeight: 400, titleFontSize: 11, labelFontSize: 11, gridColor: hair, domainColor: colour("line"), tickColor: colour("line"), titlePadding: 8 } };
  }
  const views = new Map();
  const compared = (rows) => rows.some((row) => !missing(row.other));
  async function draw(place, name, data, description) {
    const specification = painted(content.charts[name], { ...inks() });
    specification.description = description;
    if (name === "ranking") specification.height = 19 * data.rows.length;
    if (name === "ranking" && !compared(data.rows)) specification.layer.pop(); // ticks of nothing have no extent
    specification.datasets = data;
    const options = { mode: "vega-lite", actions: false, renderer: "svg", ast: true, defaultStyle: false, config: theme(), tooltip: tip };
    const result = await window.vegaEmbed(place, specification, options);
    if (views.has(place)) views.get(place).finalize();
    views.set(place, result);
    return result;
  }
  let tipped = null;
  function tip(handler, event, item, value) {
    if (tipped) { tipped.remove(); tipped = null; }
    if (missing(value) || value === "") return;
    const lines = Object.entries(value).filter(([, text]) => !missing(text) && text !== "" && text !== "null" && text !== "NaN");
    tipped = el("div", { class: "tip" }, lines.map(([name, text]) => el("div", {}, el("b", {}, `${name} `), text)));
    (byId("sheet").open ? byId("sheet") : document.body).append(tipped);
    const box = tipped.getBoundingClientRect();
    tipped.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 8))}px`;
    tipped.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
  }
  const VIEWS = {
    "data and weight": "Noise that quantizing adds to a layer's data and weight, over their signal.",
    statistics: "Noise expected at the output of each layer from the statistics of its data and weight, over its signal.",
    isolated: "Noise at the output of each layer alone, over its signal, as measured.",
    whole: "Noise at the output of the model with one layer quantized at a time, over its signal, as measured.",
  };
  const nothingRanked = () => (Object.keys(run.fits).length ? "No layer of this fit is quantized." : "The run has no fit yet; calibrant fit makes one.");
  async function drawRanking() {
    const ranked = run.rows[state.fit].filter((row) => !missing(row.error_percent));
    const there = index(against && against.rows[otherFit()]);
    const size = innerWidth < 580 ? 20 : 36;
    const rows = ranked.slice(0, state.allBars ? ranked.length : BARS).map((row, place) => ({ rank: place + 1, label: `${place + 1}   ${middle(stem(row.layer), size)}`, layer: row.layer, value: row.ranked_percent, other: (there.get(row.layer) || {}).ranked_by === row.ranked_by ? there.get(row.layer).ranked_percent : null }));
    byId("more").hidden = ranked.length <= BARS;
    byId("more").textContent = state.allBars ? `Show the ${BARS} worst` : `Show all ${ranked.length}`;
    byId("ranking-caption").textContent = !ranked.length ? nothingRanked() : `${VIEWS[ranked[0].ranked_by]}${compared(rows) ? " Ticks: the other run." : " Press a bar to open the layer."}`;
    byId("ranking").hidden = !ranked.length;
    if (!ranked.length) return;
    const result = await draw(byId("ranking"), "ranking", { rows }, "Error of each layer, the worst first");
    result.view.addEventListener("click", (event, item) => { if (item && item.datum && item.datum.layer) go(item.datum.layer); });
  }

  /* The head of the page */
  function figures() {
    const rows = run.rows[state.fit] || [], layers = Object.values(run.layers);
    const macs = (list) => list.reduce((sum, macs) => sum + (macs || 0), 0);
    const total = macs(layers.map((layer) => layer.macs)), low = macs(rows.map((row) => run.layers[row.layer] && run.layers[row.layer].macs));
    const warnings = run.events.filter((event) => event.severity !== "info" && (!event.fit || event.fit === state.fit)).length;
    const found = [
      ["Layers quantized", `${rows.length}`, `of ${layers.length}${total ? `, ${((100 * low) / total).toFixed(1)} % of the MACs` : ""}`],
      ...accuracyFigures(),
      rows.length && ["Worst layer", `${percent(rows[0].ranked_percent)} %`, middle(rows[0].layer, 34)],
      ["Warnings", `${warnings}`, warnings ? "see Events" : "none in this fit"],
    ].filter(Boolean);
    byId("figures").replaceChildren(...found.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, note)))));
  }
  const evaluationOf = (source, fit) => source.evaluation.filter((row) => !row.fit || row.fit === fit);
  function accuracyFigures() {
    const rows = evaluationOf(run, state.fit), found = [];
    const sqnr = rows.filter((row) => row.metric === "sqnr_db" && row.variant === "fake_quant" && typeof row.value === "number").sort((a, b) => a.value - b.value)[0];
    if (sqnr) found.push(["Output against float", `${db(sqnr.value)} dB`, `SQNR on ${sqnr.samples} samples`]);
    for (const metric of ["top1", "agreement"]) {
      const after = rows.find((row) => row.metric === metric && row.variant === "fake_quant"), before = rows.find((row) => row.metric === metric && row.variant === "fp32");
      if (after && typeof after.value === "number") found.push([metric === "top1" ? "Top-1 accuracy" : "Agreement with float", `${(100 * after.value).toFixed(1)} %`, before && typeof before.value === "number" && metric === "top1" ? `before: ${(100 * before.value).toFixed(1)} %` : `on ${after.samples} samples`]);
    }
    return found;
  }
  const METRICS = { sqnr_db: "SQNR of the output, dB", top1: "Top-1", top5: "Top-5", agreement: "Agreement with float", kl: "KL divergence", cosine: "Cosine", mse: "Mean squared error", max_abs: "Greatest difference" };
  const share = (metric) => ["top1", "top5", "agreement"].includes(metric);
  function measure(row) {
    if (!row) return "";
    const text = (value) => (typeof value === "number" && share(row.metric) ? `${(100 * value).toFixed(1)} %` : general(value));
    if (row.value === "infinite" && row.metric === "sqnr_db") return "exact";
    const interval = missing(row.low) || missing(row.high) ? "" : ` [${text(row.low)}, ${text(row.high)}]`;
    return missing(row.value) ? "" : text(row.value) + interval;
  }
  function drawAccuracy() {
    const columns = [["this run", run, state.fit], against && ["other run", against, otherFit()]].filter(Boolean);
    const groups = new Map();
    for (const [label, source, fit] of columns) for (const row of evaluationOf(source, fit)) {
      const key = JSON.stringify([row.metric, row.output || "", row.data || ""]);
      if (!groups.has(key)) groups.set(key, { metric: row.metric, output: row.output, data: row.data, cells: new Map(), samples: row.samples });
      groups.get(key).cells.set(`${label} ${row.variant}`, row);
    }
    const kinds = [...new Set([...groups.values()].flatMap((group) => [...group.cells.keys()]))].sort((a, b) => b.includes("fp32") - a.includes("fp32"));
    const head = (kind) => { const name = kind.replace("this run ", "").replace("other run ", ""); const words = name === "fp32" ? "before (float)" : name === "fake_quant" ? "after (quantized)" : name; return against ? `${words}, ${kind.startsWith("other") ? "other run" : "this run"}` : words; };
    byId("accuracy").replaceChildren(!groups.size ? el("p", { class: "note" }, "No accuracy was measured of this fit; calibrant evaluate and calibrant verify measure it.") :
      el("table", { class: "plain" }, el("caption", { class: "unseen" }, "Accuracy before and after"),
        el("thead", {}, el("tr", {}, el("th", { class: "text", scope: "col" }, "Accuracy"), kinds.map((kind) => el("th", { scope: "col" }, head(kind))), el("th", { scope: "col", class: "wide" }, "samples"))),
        el("tbody", {}, [...groups.values()].map((group) => el("tr", {}, el("td", { class: "text" }, [METRICS[group.metric] || group.metric, group.output, group.data].filter(Boolean).join(" · ")), kinds.map((kind) => el("td", { class: "whole" }, measure(group.cells.get(kind)))), el("td", { class: "wide" }, group.samples))))));
  }
  const namedMetric = (metric) => METRICS[metric] || metric;
  /* The classes of the chosen fit in which quantizing changes most answers. */
  function drawClasses() {
    const groups = new Map();
    for (const row of run.classes.filter((one) => !one.fit || one.fit === state.fit)) {
      const title = [row.variant, row.output, row.data].filter(Boolean).join(" · ");
      groups.set(title, [...(groups.get(title) || []), row]);
    }
    const cells = (row) => [row.class_id, row.samples, measure({ ...row, metric: "agreement", value: row.agreement }), row.confused_with];
    byId("classes").replaceChildren(...[...groups].map(([title, rows]) => el("details", {},
      el("summary", {}, `Agreement within each class: ${title}${rows[0].classes > rows.length ? ` (the ${rows.length} worst of ${rows[0].classes})` : ""}`),
      plainTable(["class", "samples", "agreement", "mostly taken for"], rows.map(cells)))));
  }
  /* Automatic fallback is of the run, whichever fit is chosen. */
  function drawFallback() {
    const steps = run.steps;
    if (!steps.length) return byId("fallback").replaceChildren();
    const made = chart("Automatic fallback", `${namedMetric(steps[0].metric)} against the share of MACs in int8: a point a step, a line through those that no other beats in both; the large point was chosen.`, ...(steps.every((step) => step.on_front) ? [] : [["no other beats it", "accent"], ["beaten", "other"]]));
    const rows = steps.filter((step) => !missing(step.value) && !missing(step.macs_int8_percent)).map((step) => ({ int8: step.macs_int8_percent, value: step.value, step: step.step, layers: step.layers_float, series: step.on_front ? "front" : "beaten", chosen: step.chosen }));
    if (!rows.length) made.place.remove();
    const words = (step) => [step.ok ? "reaches the goal" : "misses it", step.chosen ? "chosen" : ""].filter(Boolean).join(", ");
    made.section.append(plainTable(["step", "layers in float", "MACs in int8", "measured", ""], steps.map((step) => [step.step, step.layers_float, `${general(step.macs_int8_percent)} %`, measure(step), words(step)])));
    byId("fallback").replaceChildren(made.section);
    if (rows.length) draw(made.place, "pareto", { rows }, "Accuracy of the steps of automatic fallback against the share of MACs in int8; the table below has its numbers");
  }
  function drawInputs() {
    const rows = run.inputs.filter(([fit]) => fit === state.fit).map(([, node, input, algorithm, bits, scale, offset, least, greatest, sqnr]) => [node, input, `${algorithm} ${bits}`, scale, offset, `${general(least)} to ${general(greatest)}`, db(sqnr)]);
    byId("inputs").replaceChildren(...(rows.length ? [table("Quantized inputs of other nodes", ["node", "input", "as", "scale", "offset", "clip range", "dB"], rows)] : []));
  }
  function drawEvents() {
    const events = run.events.filter((event) => !event.fit || event.fit === state.fit);
    byId("event-list").replaceChildren(eventList(events));
  }
  const eventList = (events) => !events.length ? el("p", { class: "note" }, "None.") : el("ul", { class: "events" }, events.map((event) =>
    el("li", {}, el("span", { class: `severity ${event.severity}` }, event.severity), el("span", {}, event.layer ? el("b", {}, `${event.layer}: `) : null, event.message, missing(event.sample) ? null : ` (sample ${event.sample})`, el("span", { class: "type" }, [event.stage, event.fit].filter(Boolean).join(" · "))))));
  const factList = (facts) => el("dl", { class: "facts" }, facts.filter(([, value]) => !missing(value) && value !== "").map(([name, ...values]) => [el("dt", {}, name), el("dd", {}, ...values)]).flat());
  function provenanceOf(source, fit) {
    const made = source.fits[fit] || {};
    const facts = [...source.facts, ["Fit", fit], ["Configuration", made.source], ["Configuration hash", made.hash], ["Search", made.exact ? "exact, on raw values" : "on histograms"], ["Exported to", made.prefix], ...Object.entries(source.versions).map(([name, version]) => [name, version]), ...Object.entries(source.seconds).map(([name, seconds]) => [`Seconds, ${name}`, general(seconds)])];
    return [factList(facts), made.text ? el("details", {}, el("summary", {}, "Text of the configuration"), el("pre", {}, made.text)) : null];
  }
  function drawProvenance() {
    const parts = !against ? provenanceOf(run, state.fit) : [el("div", { class: "pair" }, el("div", {}, el("h3", {}, "This run"), ...provenanceOf(run, state.fit).filter(Boolean)), el("div", {}, el("h3", {}, "Other run"), ...provenanceOf(against, otherFit()).filter(Boolean)))];
    byId("provenance").replaceChildren(...parts.filter(Boolean));
  }
  function drawChanges() {
    if (!against) return;
    const pairs = [...run.facts.map(([name, value]) => [name, value, (against.facts.find((fact) => fact[0] === name) || [])[1]]), ["Configuration", (run.fits[state.fit] || {}).hash, (against.fits[otherFit()] || {}).hash]];
    const differing = pairs.filter(([name, a, b]) => a !== b && name !== "Run").map(([name]) => name.toLowerCase());
    const rows = tableRows(), common = rows.some((row) => !missing(row.change)), count = (number) => `${number} ${number === 1 ? "layer" : "layers"}`;
    const worse = rows.filter((row) => row.change < -0.05).length, better = rows.filter((row) => row.change > 0.05).length;
    byId("changes").replaceChildren(el("p", { class: "note" }, `Against ${against.path}: ${otherFit() === undefined ? "it has no fit" : common ? `${count(worse)} worse there, ${better} better` : "no layer is quantized in both"}. `, differing.length ? `The runs differ in ${differing.join(", ")}.` : "Model, data and configuration are the same."));
  }

  /* The sheet of a layer */
  const sheetData = (name) => { const found = [...document.querySelectorAll("script[data-layer]")].find((node) => node.dataset.layer === name); return found ? JSON.parse(found.textContent) : null; };
  function binRows(histogram, clip, series) {
    const width = (histogram.max - histogram.min) / histogram.counts.length || Math.max(1e-6, Math.abs(histogram.max) * 1e-3);
    return histogram.counts.map((count, place) => {
      const x0 = histogram.min + place * width, centre = x0 + width / 2;
      const inside = !clip || (centre >= clip.clip_min && centre <= clip.clip_max);
      return { x0, x1: x0 + width, count, series: series || (inside ? "inside" : "clipped") };
    }).filter((row) => row.count > 0 && Number.isFinite(row.x0) && Number.isFinite(row.x1));
  }
  const clipRows = (data, series) => (!data || missing(data.clip_min) ? [] : [["least", data.clip_min], ["greatest", data.clip_max]].map(([what, at]) => ({ what: `${what} value, ${series}`, at, series })));
  const lossRows = (loss, histogram, series) => loss.width.map((width, place) => ({ share: width / (histogram.max - histogram.min || 1), ratio: loss.ratio[place], best: place === loss.best, series })).filter((row) => row.ratio > 0);
  const stripRows = (strips, series) => strips.min.map((min, place) => ({ from: place * strips.size, to: (place + 1) * strips.size, min, max: strips.max[place], series, what: strips.size > 1 ? `${place * strips.size} to ${Math.min(strips.channels, (place + 1) * strips.size) - 1}` : String(place) })).filter((row) => !missing(row.min));
  const chart = (title, note, ...keys) => { const place = el("div", { class: "chart", role: "img", "aria-label": title }); return { place, section: el("section", {}, el("h3", {}, title), note ? el("p", { class: "note" }, note) : null, place, keys.length ? el("p", { class: "note" }, keys.map(([name, swatch]) => el("span", { class: "key" }, el("i", { style: { "--swatch": `var(--${swatch})` } }), name))) : null) }; };

  function sheetFacts(layer, row, part) {
    const data = part.data || {}, weight = part.weight;
    return factList([
      ["Error", missing(row.error_percent) ? null : `${percent(row.error_percent)} % of the signal`], ["Data", missing(row.data_db) ? null : `${db(row.data_db)} dB${missing(row.clip_rate) ? "" : `, ${general(100 * row.clip_rate)} % of the values clipped`}`],
      ["Scale, offset", missing(data.scale) ? null : `${data.scale}, ${data.offset}`], ["Clip range", missing(data.clip_min) ? null : `${general(data.clip_min)} to ${general(data.clip_max)}`],
      ["Algorithm", data.algorithm ? `${data.algorithm}, ${data.bits} bits, decided by ${data.decided_by}` : null], ["Weight", missing(row.weight_db) ? null : `${db(row.weight_db)} dB`],
      ["Weight scales", weight ? `${weight.scales} of ${weight.bits} bits by ${weight.algorithm}, ${general(weight.least)} to ${general(weight.greatest)}${weight.decided_by !== weight.algorithm ? `; decided by ${weight.decided_by}` : ""}` : null],
      ["Channels", missing(layer.channels_out) ? null : `${layer.channels_in} to ${layer.channels_out}${layer.groups > 1 ? `, ${layer.groups} groups` : ""}`], ["MACs, parameters", `${millions(layer.macs) || "unknown"}, ${millions(layer.parameters)}`],
      ["In float because", missing(row.error_percent) ? layer.reason || ((part.plan || [])[0] || [])[1] : null],
    ]);
  }
  function openSheet(name) {
    const sheet = sheetData(name);
    if (!sheet) return closeSheet();
    state.open = name;
    const layer = run.layers[name] || against.layers[name], part = sheet.fits[state.fit] || {}, row = index(run.rows[state.fit]).get(name) || {};
    const other = sheet.against, otherPart = (other && other.fits[otherFit()]) || {}, jobs = [], body = [];
    byId("sheet-kind").textContent = [layer.op_type, row.rank ? `rank ${row.rank}` : run.layers[name] ? "in float" : "only in the other run", state.fit].join(" · ");
    byId("sheet-title").textContent = name;
    const mine = run.layers[name] ? [sheetFacts(layer, row, part)] : [el("p", { class: "note" }, "Only in the other run.")];
    body.push(!other ? el("section", {}, ...mine) : el("section", { class: "pair" }, el("div", {}, el("h3", {}, "This run"), ...mine), el("div", {}, el("h3", {}, "Other run"), sheetFacts(against.layers[name], index(against.rows[otherFit()]).get(name) || {}, otherPart))));
    const histogram = sheet.histogram || (other && other.histogram);
    const both = other && sheet.histogram && other.histogram;
    if (histogram) {
      const clips = [...clipRows(part.data, "this run"), ...clipRows(otherPart.data, "other run")];
      const note = part.balanced ? "Of the data before the balancer divides it; the clip range is that of the divided data." : clips.length ? "How many values lie in each bin, on a log scale; values beyond the dashed lines are clipped to them." : "How many values lie in each bin, on a log scale.";
      const keys = [["inside the clip range", "accent"], ["clipped", "alert"], both && ["other run, scaled to as many values", "other"]].filter(Boolean);
      const scaled = both ? { ...other.histogram, counts: other.histogram.counts.map((count) => (count * sheet.histogram.n) / other.histogram.n) } : other && other.histogram;
      const rows = [...(sheet.histogram ? binRows(sheet.histogram, part.balanced ? null : part.data) : []), ...(scaled ? binRows(scaled, null, "other run") : [])];
      const made = rows.length ? chart("Histogram of the data", note, ...keys) : { section: el("p", { class: "note" }, "The histogram of the data holds no finite values.") };
      body.push(made.section);
      if (rows.length) jobs.push(() => draw(made.place, "histogram", { rows, clips }, `Histogram of the data of ${name} on a log scale, with its clip range`));
    }
    const losses = [part.loss && sheet.histogram && lossRows(part.loss, sheet.histogram, "this run"), otherPart.loss && other.histogram && lossRows(otherPart.loss, other.histogram, "other run")].filter(Boolean).flat();
    if (losses.length) {
      const made = chart("Loss of the search", `${(part.loss || otherPart.loss).algorithm}: each candidate range, the chosen one marked${part.loss && part.loss.exact ? "; on raw values" : ""}.`); body.push(made.section);
      jobs.push(() => draw(made.place, "loss", { rows: losses }, `Loss of each candidate clip range of ${name}`));
    }
    const spreads = [];
    for (const [key, title] of [["data_channels", "Channels of the data"], ["weight_channels", "Output channels of the weight"]]) {
      const strips = sheet[key], beside = other && other[key];
      if (!strips && !beside) continue;
      const known = strips || beside, notes = [`${known.channels} channels`, known.imbalance && `greatest over median ${general(known.imbalance)}`, known.dead && `${known.dead} dead`].filter(Boolean);
      const rows = [...(beside ? stripRows(beside, "other run") : []), ...(strips ? stripRows(strips, "this run") : [])];
      if (!rows.length) continue; // all of them NaN
      const made = chart(title, notes.join(", ")); spreads.push(made.section);
      jobs.push(() => draw(made.place, "channels", { rows }, `${title} of ${name}: least to greatest value of each`));
    }
    if (spreads.length) body.push(el("div", { class: "pair" }, spreads));
    if (part.measured) body.push(table("Measured", ["view", "metric", "value", "interval", "samples"], part.measured.map(([view, metric, value, low, high, samples]) => [view, metric, general(value), missing(low) ? "" : `${general(low)} to ${general(high)}`, samples])));
    if (part.plan) body.push(table("Plan, and who decided", ["what", "settings", "decided by"], part.plan));
    const events = run.events.filter((event) => (event.layer === name || (sheet.tensor && event.layer === sheet.tensor)) && (!event.fit || event.fit === state.fit));
    if (events.length) body.push(el("section", {}, el("h3", {}, "Events"), eventList(events)));
    byId("sheet-body").replaceChildren(...body);
    const place = (state.order || []).indexOf(name);
    byId("previous").disabled = place <= 0; byId("next").disabled = place < 0 || place >= state.order.length - 1;
    if (!byId("sheet").open) byId("sheet").showModal();
    byId("sheet").scrollTop = 0;
    byId("sheet-title").focus({ preventScroll: true });
    state.drawn = Promise.all(jobs.map((job) => job()));
  }
  const plainTable = (heads, rows) => el("table", { class: "plain" }, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { class: "text", scope: "col" }, head)))), el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", { class: "text" }, missing(cell) ? "" : cell))))));
  const table = (title, heads, rows) => el("section", {}, el("h3", {}, title), plainTable(heads, rows));
  function closeSheet() {
    const name = state.open;
    state.open = null;
    if (byId("sheet").open) byId("sheet").close();
    if (name) { const button = [...document.querySelectorAll("[data-open]")].find((node) => node.dataset.open === name); if (button) button.focus(); }
  }

  /* The open layer is part of the address, so that a link or the back key leads to it. */
  const go = (name) => { location.hash = `layer=${encodeURIComponent(name)}`; };
  const leave = () => { location.hash = "layers"; };
  function follow() {
    const found = /^#layer=(.*)$/.exec(location.hash);
    if (!found) return closeSheet();
    let name = found[1];
    try { name = decodeURIComponent(name); } catch { /* a hash that somebody typed */ }
    openSheet(name);
  }
  const beside = (step) => { const name = state.order[state.order.indexOf(state.open) + step]; if (name) go(name); };

  /* Light and dark */
  const isDark = () => { const chosen = document.documentElement.dataset.theme; return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches; };
  const nameTheme = () => { byId("theme").textContent = isDark() ? "Light" : "Dark"; };
  function recolour() { nameTheme(); drawRanking(); drawFallback(); if (state.open) openSheet(state.open); }

  function drawLead() {
    const file = (path) => path.split(/[/\\]/).pop();
    const made = run.fits[state.fit];
    byId("lead").textContent = [run.data ? `${run.samples} samples of ${file(run.data)}` : `${run.samples} samples given in Python`, made && `configuration: ${file(made.source)}`, against && `against ${against.path}`].filter(Boolean).join(" · ");
  }
  function drawAll() { drawLead(); figures(); drawAccuracy(); drawChanges(); drawClasses(); drawHeads(); drawBody(); drawInputs(); drawEvents(); drawProvenance(); drawRanking(); drawFallback(); if (state.open) openSheet(state.open); }
  byId("name").textContent = run.name;
  byId("kind").textContent = against ? "Comparison of two calibrations" : "Calibration report";
  byId("fit-label").hidden = fits.length < 2;
  byId("fit").append(...fits.map((fit) => el("option", { value: fit, selected: fit === state.fit }, fit)));
  byId("fit").addEventListener("change", (event) => { state.fit = event.target.value; drawAll(); });
  byId("search").addEventListener("input", (event) => { state.query = event.target.value; drawBody(); });
  byId("more").addEventListener("click", () => { state.allBars = !state.allBars; drawRanking(); });
  byId("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; recolour(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  byId("close").addEventListener("click", leave);
  byId("previous").addEventListener("click", () => beside(-1));
  byId("next").addEventListener("click", () => beside(1));
  byId("sheet").addEventListener("cancel", (event) => { event.preventDefault(); leave(); });
  byId("sheet").addEventListener("click", (event) => { if (event.target === byId("sheet")) leave(); });
  addEventListener("hashchange", follow);
  addEventListener("scroll", () => { if (tipped) { tipped.remove(); tipped = null; } }, { passive: true, capture: true });
  nameTheme();
  if (!fits.length) { state.fit = "default"; run.rows.default = []; }
  drawAll();
  follow();
})();
