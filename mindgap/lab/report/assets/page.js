"use strict";
// Draws every figure of the page from the numbers embedded in it, and answers the controls. No request is ever made.
(async () => {
  // The numbers are compressed; every browser of the last years unpacks them, without a request.
  const packed = Uint8Array.from(atob(document.getElementById("mg-data").textContent.trim()), (c) => c.charCodeAt(0));
  const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const began = performance.now();
  const figures = new Map(data.figures.map((f) => [f.id, f]));
  const state = new Map();
  const drawn = new Map();

  // ---- numbers -----------------------------------------------------------------------------------------------
  const show = (v) => {
    if (v === null || v === undefined || !Number.isFinite(v)) return "–";
    const a = Math.abs(v);
    if (v !== 0 && (a < 1e-3 || a >= 1e6)) {
      const [digits, power] = v.toExponential(2).split("e");
      const raised = [...String(Number(power))].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
      return `${Number(digits) === 1 ? "" : `${Number(digits)}·`}10${raised}`;
    }
    return Number(v.toPrecision(a >= 100 ? Math.ceil(Math.log10(a + 1)) : 3)).toLocaleString("en", { maximumFractionDigits: 6 });
  };

  function middle(series, i, statistic) {
    if (series.y) return [series.y[i], null, null];
    if (statistic === "quantiles") return [series.q50[i], series.q10[i], series.q90[i]];
    const m = series.mean[i], s = series.sd ? series.sd[i] : null;
    return statistic === "mean" && m !== null && s !== null ? [m, m - s, m + s] : [m, null, null];
  }

  function value(series, i, statistic, low, mid, high) {
    const n = series.n ? series.n[i] : 1;
    if (series.y) return show(mid) + (series.s === undefined ? "" : `  (seed ${series.s})`);
    if (statistic === "quantiles") return `${show(mid)}  [${show(low)}, ${show(high)}]  (${n} seeds)`;
    if (statistic === "mean") return `${show(mid)} ± ${show(high === null ? null : high - mid)}  (${n} seeds)`;
    return show(mid);
  }

  const placeOf = (figure, axis, x) =>
    figure.names.length ? (axis.name === "method" ? "" : `${figure.names[x]}\n`) : `${axis.label}: ${show(x)}\n`;

  // The same rows as `view_rows` makes for the pictures, for what the reader chose.
  function rowsOf(figure, st) {
    const axis = figure.axes[st.axis];
    const every = st.statistic === "every" && axis.runs.length;
    const list = every ? axis.runs : axis.series;
    const rows = [];
    let least = Infinity;
    const floor = axis.series.some((s) => s.q10) && axis.series.every((s) => !s.q10 || s.q10.every((q) => q === null || q >= 0)) ? 0 : -Infinity;
    const about = (series) => !figure.accent.length || figure.accent.includes(series.m);
    // The methods that the claim is about are drawn last, on top of the grey ones.
    [...list.entries()].sort((a, b) => about(a[1]) - about(b[1])).forEach(([place, series]) => {
      if (st.hidden.has(series.m)) return;
      const size = series.x.length;
      const stride = Math.max(1, Math.ceil(size / (every ? 12 : 60)));
      for (let i = 0; i < size; i++) {
        const x = series.x[i];
        if (x === null || (st.logX && x <= 0)) continue;
        let [y, lo, hi] = middle(series, i, st.statistic);
        if (y !== null && st.logY && y <= 0) y = null;
        const row = { x: x + figure.shifts[series.m], y, m: figure.methods[series.m], f: figure.facets[series.f], r: place, o: i, k: about(series) };
        if (y !== null) {
          least = Math.min(least, y);
          if (lo !== null && hi !== null) { row.lo = Math.max(lo, floor); row.hi = hi; }
          if (figure.kind === "points" || i % stride === 0 || i === size - 1) {
            row.h = true;
            row.t = `${row.m}\n${placeOf(figure, axis, x)}${figure.yLabel}: ${value(series, i, st.statistic, lo, y, hi)}`;
          }
        }
        rows.push(row);
      }
    });
    if (st.logY) for (const row of rows) if (row.lo !== undefined && row.lo <= 0) row.lo = least;
    return rows;
  }

  // ---- drawing -----------------------------------------------------------------------------------------------
  // As in scales.py.
  const scale = (log, padded, flat) =>
    Object.assign(log ? { type: "log", nice: false } : { type: "linear", zero: flat }, padded ? { padding: 10 } : {});
  const ticks = (axis, log, channel, own) => { if (log) axis.labelExpr = data.labels[channel + Number(own)]; else delete axis.labelExpr; };
  const columnsOf = (panels, most) => Math.ceil(panels / Math.ceil(panels / Math.max(most, 1)));

  function withState(figure, st, rows) {
    const spec = structuredClone(figure.spec);
    const axis = figure.axes[st.axis];
    const unit = spec.spec || spec;
    spec.datasets.rows = rows;
    const x = unit.encoding.x;
    if (!figure.names.length) {
      x.axis.title = axis.label;
      x.scale = scale(st.logX, figure.kind === "points", false);
      ticks(x.axis, st.logX, "x", Boolean(axis.alone.x));
    }
    const flat = new Set(rows.map((row) => row.y).filter((y) => y !== null)).size === 1;
    // Without a band the layer would only put an empty extent on the axes.
    if (!rows.some((row) => row.lo !== undefined)) unit.layer = unit.layer.filter((layer) => layer.name !== "band");
    for (const layer of unit.layer) {
      const y = layer.encoding && layer.encoding.y;
      if (y && y.scale) {
        y.scale = scale(st.logY, st.logY, flat);
        if (y.axis) ticks(y.axis, st.logY, "y", Boolean(axis.alone.y));
      }
    }
    if (spec.facet) {
      spec.facet.sort = figure.facets;
      spec.resolve = { ...(spec.resolve || {}), scale: axis.alone };
    }
    return spec;
  }

  // On the page colours are CSS variables, so that light, dark and print need no new drawing.
  const WORDS = { mean: "mean ± sd", quantiles: "median, 10–90 %", every: "every run" };
  const drawnWords = (figure, st) =>
    st.rank ? `${figure.yLabel}, ${figure.rank.title.subtitle}`
      : figure.yLabel + (figure.kind === "lines" && WORDS[st.statistic] ? ` (${WORDS[st.statistic]})` : "");

  function forPage(figure, st, width) {
    const spec = st.rank ? structuredClone(figure.rank) : withState(figure, st, rowsOf(figure, st));
    const unit = spec.spec || spec;
    const seen = (row) => !st.hidden.has(figure.methods.indexOf(row.m));
    if (st.rank) {
      spec.data.values = spec.data.values.filter(seen);
      for (const layer of unit.layer) if (layer.data) layer.data.values = layer.data.values.filter(seen);
    }
    spec.title = { text: drawnWords(figure, st), anchor: "start", frame: "group", fontSize: 13, fontWeight: "normal" };
    spec.background = null;
    const colour = unit.encoding.color;
    colour.scale.range = figure.colours.map((name) => `var(--${st.rank && !figure.accent.length ? "muted" : name})`);
    colour.legend = null;
    for (const layer of unit.layer) {
      const e = layer.encoding;
      if (e.shape) e.shape.legend = null;
      if (e.strokeDash) e.strokeDash.legend = null;
      if (e.color && e.color.value) e.color.value = layer.name === "rim" ? "var(--card)" : "var(--muted)";
      if (layer.name === "rim") layer.mark.stroke = "var(--card)";
    }
    const c = spec.config;
    c.font = c.axis.titleFont = c.legend.labelFont = "system-ui, sans-serif";
    Object.assign(c.axis, { labelColor: "var(--muted)", titleColor: "var(--muted)", gridColor: "var(--grid)",
      domainColor: "var(--rule)", tickColor: "var(--rule)" });
    c.title.color = c.title.subtitleColor = "var(--muted)";
    c.header.labelColor = "var(--text)";
    if (spec.facet) {
      const shown = figure.facets.length;
      const columns = columnsOf(shown, Math.max(1, Math.min(Math.floor(width / (st.rank ? 480 : 290)), 4)));
      spec.resolve = spec.resolve || {};
      if (shown % columns) spec.resolve.axis = { x: "independent" }; else delete spec.resolve.axis;
      const own = Boolean(figure.axes[st.axis].alone.y);
      spec.columns = columns;
      const margin = st.rank ? 150 * columns : own ? 62 * columns : 62;
      unit.width = Math.max(120, Math.floor((width - margin - 28 * (columns - 1)) / columns) - 4);
      if (!st.rank) unit.height = 220;
    } else {
      unit.width = width;
      if (!st.rank) unit.height = Math.round(Math.min(400, Math.max(250, width * 0.62)));
      st.labels = st.rank ? 0 : roomForLabels(figure, st, width);
      if (st.labels) spec.padding = { left: 5, top: 5, bottom: 5, right: st.labels };
    }
    return spec;
  }

  // ---- names at the ends of the lines --------------------------------------------------------------------------
  const named = (figure, st) => figure.axes[st.axis].series.filter((s) => s.x.length && !st.hidden.has(s.m) &&
    (!figure.accent.length || figure.accent.includes(s.m)));

  // Pixels at the right for names of lines; 0 where a legend serves better (panels, many lines, long names, few pixels).
  function roomForLabels(figure, st, width) {
    const list = named(figure, st);
    if (figure.kind !== "lines" || figure.names.length || !list.length || list.length > 8) return 0;
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = "12px system-ui, sans-serif";
    const room = 14 + Math.max(...list.map((s) => pen.measureText(figure.methods[s.m]).width));
    return room < 0.34 * width ? Math.ceil(room) : 0;
  }

  function label(figure, st, result, box) {
    const svg = box.querySelector("svg"), view = result.view;
    const [left, top] = view.origin(), x = view.scale("x"), y = view.scale("y");
    const ends = named(figure, st).map((s) => {
      for (let i = s.x.length - 1; i >= 0; i--) {
        const value = s.q50 ? (st.statistic === "quantiles" || st.statistic === "every" ? s.q50[i] : s.mean[i]) : s.mean[i];
        if (value !== null && s.x[i] !== null && (!st.logY || value > 0) && (!st.logX || s.x[i] > 0)) return { m: s.m, x: x(s.x[i]), y: y(value) };
      }
      return null;
    }).filter(Boolean).sort((a, b) => a.y - b.y);
    const bottom = view.height() + 8;
    ends.forEach((end, i) => { end.at = i ? Math.max(end.y, ends[i - 1].at + 14) : end.y; });
    for (let i = ends.length - 1, limit = bottom; i >= 0; i--, limit -= 14) ends[i].at = Math.min(ends[i].at, limit);
    for (const end of ends) {
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      const set = { x: left + view.width() + 6, y: top + end.at + 4, fill: `var(--${figure.colours[end.m]})`, class: "end", "font-size": 12, "font-family": "system-ui, sans-serif" };
      for (const [key, given] of Object.entries(set)) text.setAttribute(key, given);
      text.textContent = figure.methods[end.m];
      text.addEventListener("pointerenter", () => light(figure.id, figure.methods[end.m]));
      text.addEventListener("pointerleave", () => light(figure.id, ""));
      svg.append(text);
    }
  }

  // Fade every line but that of one method; "" shows all again.
  function light(id, method) {
    const result = drawn.get(id);
    if (result && !state.get(id).rank) result.view.signal("lit", method).runAsync();
  }

  async function draw(id) {
    const figure = figures.get(id), st = state.get(id);
    const place = document.querySelector(`#${CSS.escape(id)} .chart`);
    const width = place.clientWidth;
    if (!width) return;
    st.width = width;
    if (figure.axes[st.axis].series.every((series) => st.hidden.has(series.m))) {
      if (drawn.has(id)) { drawn.get(id).finalize(); drawn.delete(id); }
      place.textContent = "Every method is switched off.";
      return;
    }
    const ticket = (st.ticket = (st.ticket || 0) + 1);
    const box = document.createElement("div");
    box.setAttribute("aria-hidden", "true"); // the picture is described as a whole, its numbers stand in the table
    const result = await window.vegaEmbed(box, forPage(figure, st, width), {
      renderer: "svg", actions: false,
      tooltip: { theme: "custom", formatTooltip: (row, sanitize) => sanitize(row.t || "") },
    });
    if (ticket !== st.ticket) { result.finalize(); return; }
    if (drawn.has(id)) drawn.get(id).finalize();
    drawn.set(id, result);
    if (st.labels) label(figure, st, result, box);
    // Names at the lines make a legend needless; its switches stay among the options.
    const legend = place.parentElement.querySelector(".legend"), options = place.parentElement.querySelector(".options");
    if (st.labels || st.rank) options.querySelector(".controls").before(legend); else options.before(legend);
    place.replaceChildren(box);
    place.dataset.drawn = "yes";
    place.setAttribute("aria-label", describe(figure, st));
  }

  function describe(figure, st) {
    const shown = figure.methods.filter((_, i) => !st.hidden.has(i) && figure.axes[st.axis].series.some((s) => s.m === i));
    if (st.rank) return `${figure.headline}. Ranking by ${drawnWords(figure, st)}.`;
    return `${st.hidden.size ? figure.title : figure.headline}. ${figure.yLabel} against ${figure.axes[st.axis].label}, for ${shown.join(", ")}.` +
      " The table below the figure has the numbers.";
  }

  // ---- table of last values ----------------------------------------------------------------------------------
  function lastValues(figure, st) {
    const body = document.querySelector(`#${CSS.escape(figure.id)} .ends tbody`);
    if (!body) return;
    const axis = figure.axes[st.axis];
    body.replaceChildren(...axis.series.filter((s) => s.x.length || s.ends).map((s) => {
      const i = s.x.length - 1;
      const e = s.ends || { n: s.n ? s.n[i] : 1, first: s.x[i], last: s.x[i], ...Object.fromEntries(["mean", "sd", "q10", "q50", "q90"].map((n) => [n, s[n] && s[n][i]])) };
      const row = document.createElement("tr");
      const name = figure.methods[s.m] + (figure.facets[s.f] && figure.facets[s.f] !== figure.methods[s.m] ? `, ${figure.facets[s.f]}` : "");
      const cells = s.y
        ? [s.s === undefined ? "" : String(s.s), show(s.x[i]), show(s.y[i])]
        : [String(e.n), e.first === e.last ? show(e.last) : `${show(e.first)} to ${show(e.last)}`,
           e.n > 1 ? `${show(e.mean)} ± ${show(e.sd)}` : show(e.mean),
           e.n > 1 ? `${show(e.q50)} [${show(e.q10)}, ${show(e.q90)}]` : "–"];
      const th = document.createElement("th");
      th.scope = "row";
      th.textContent = name;
      row.append(th, ...cells.map((text) => { const td = document.createElement("td"); td.textContent = text; return td; }));
      return row;
    }));
    const head = document.querySelector(`#${CSS.escape(figure.id)} .ends .axis-name`);
    if (head) head.textContent = axis.label;
  }

  // ---- downloads ---------------------------------------------------------------------------------------------
  function save(name, content, type) {
    const link = document.createElement("a");
    const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    link.href = url;
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  // A view that is not on the page: white paper, the legend inside, as `picture` draws it.
  const apart = (figure, st) =>
    window.vegaEmbed(document.createElement("div"), st.rank ? figure.rank : withState(figure, st, rowsOf(figure, st)), { renderer: "svg", actions: false });

  const quote = (text) => (/[",\n\r]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : String(text));

  function csv(figure, st) {
    const axis = figure.axes[st.axis];
    const every = st.statistic === "every" && axis.runs.length;
    const list = every ? axis.runs : axis.series;
    const names = list.length && list[0].y ? ["y"] : data.statistics;
    const lines = [["method", "panel", "seed", axis.name, ...names].map(quote).join(",")];
    for (const s of list) {
      for (let i = 0; i < s.x.length; i++) {
        const cells = names.map((n) => (s[n] && s[n][i] !== null ? s[n][i] : n === "n" ? 1 : ""));
        lines.push([figure.methods[s.m], figure.facets[s.f], s.s === undefined ? "" : s.s, s.x[i], ...cells].map(quote).join(","));
      }
    }
    return lines.join("\n") + "\n";
  }

  async function download(id, kind) {
    const figure = figures.get(id), st = state.get(id);
    const name = id.replace(/^fig-/, "");
    if (kind === "csv") return save(`${name}.csv`, csv(figure, st), "text/csv;charset=utf-8");
    const result = await apart(figure, st);
    try {
      if (kind === "svg") return save(`${name}.svg`, await result.view.toSVG(), "image/svg+xml");
      const canvas = await result.view.toCanvas(2);
      canvas.toBlob((blob) => save(`${name}.png`, blob, "image/png"));
    } finally {
      result.finalize();
    }
  }

  // ---- controls ----------------------------------------------------------------------------------------------
  function control(section, figure) {
    const st = {
      axis: 0, statistic: figure.statistic, hidden: new Set(), logX: figure.logX, logY: figure.logY, width: 0,
      rank: Boolean(figure.rank), labels: 0,
    };
    state.set(figure.id, st);
    // A ranking has no x-axis, no choice of statistic and a fixed scale: their controls are not there.
    const fit = () => {
      for (const name of [".axis", ".statistic", ".log-x", ".log-y"]) {
        const element = section.querySelector(name);
        if (element) element.closest("label").hidden = st.rank;
      }
    };
    const again = () => { fit(); lastValues(figure, st); draw(figure.id).catch(report); };
    const on = (selector, event, action) => {
      const element = section.querySelector(selector);
      if (element) element.addEventListener(event, () => { action(element); again(); });
    };
    on(".view", "change", (e) => { st.rank = e.value === "rank"; });
    on(".axis", "change", (e) => { st.axis = Number(e.value); });
    on(".statistic", "change", (e) => { st.statistic = e.value; });
    on(".log-x", "change", (e) => { st.logX = e.checked; });
    on(".log-y", "change", (e) => { st.logY = e.checked; });
    const methods = section.querySelectorAll(".legend button[data-method]");
    for (const button of section.querySelectorAll(".legend button[data-every]")) {
      button.addEventListener("click", () => {
        const on = button.dataset.every === "all";
        for (const method of methods) {
          method.setAttribute("aria-pressed", String(on));
          if (on) st.hidden.delete(Number(method.dataset.method)); else st.hidden.add(Number(method.dataset.method));
        }
        again();
      });
    }
    for (const button of methods) {
      for (const [event, on] of [["pointerenter", true], ["pointerleave", false], ["focus", true], ["blur", false]]) {
        button.addEventListener(event, () => light(figure.id, on ? figure.methods[button.dataset.method] : ""));
      }
      button.addEventListener("click", () => {
        const index = Number(button.dataset.method);
        const off = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!off));
        if (off) st.hidden.add(index); else st.hidden.delete(index);
        again();
      });
    }
    for (const button of section.querySelectorAll("button[data-save]")) {
      button.addEventListener("click", () => download(figure.id, button.dataset.save).catch(report));
    }
    fit();
    lastValues(figure, st);
  }

  function report(error) {
    console.error(error);
  }

  const waiting = [];
  for (const figure of figures.values()) {
    const section = document.getElementById(figure.id);
    control(section, figure);
    if (!section.closest("details.scale:not([open])")) waiting.push(figure.id);
  }
  // A scale that is folded away is drawn when somebody unfolds it.
  for (const fold of document.querySelectorAll("details.scale")) {
    fold.addEventListener("toggle", () => {
      if (fold.open) for (const f of fold.querySelectorAll(".figure")) if (figures.has(f.id) && !drawn.has(f.id)) draw(f.id).catch(report);
    });
  }
  const unfold = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.matches("details.scale")) target.open = true;
  };
  window.addEventListener("hashchange", unfold);
  unfold();

  // Figures in sight first, the others when there is time: the page answers at once however long it is.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        take(entry.target.id);
      }
    }
  }, { rootMargin: "400px" });
  function take(id) {
    const place = waiting.indexOf(id);
    if (place >= 0) { waiting.splice(place, 1); draw(id).catch(report); }
  }
  for (const id of waiting) near.observe(document.getElementById(id));
  (function rest() {
    if (!waiting.length) {
      document.documentElement.dataset.seconds = ((performance.now() - began) / 1000).toFixed(1);
      document.documentElement.dataset.ready = "yes";
      return;
    }
    draw(waiting.shift()).catch(report).finally(() => setTimeout(rest, 0));
  })();

  let timer = 0;
  new ResizeObserver(() => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      for (const [id, st] of state) {
        const width = document.querySelector(`#${CSS.escape(id)} .chart`).clientWidth;
        if (st.width && width && width !== st.width) draw(id).catch(report);
      }
    }, 150);
  }).observe(document.querySelector("main"));

  // ---- paper: everything is unfolded, and drawn before the first sheet ------------------------------------------
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".behind:not([open]), .rule details:not([open]), .scale:not([open]), .fold:not([open])")];
    for (const details of opened) details.open = true;
    // A figure waits for promises only, and those are kept before the browser goes on to print.
    for (const id of figures.keys()) if (!drawn.has(id)) draw(id).catch(report);
  });
  window.addEventListener("afterprint", () => { for (const details of opened) details.open = false; });

  // ---- theme and search --------------------------------------------------------------------------------------
  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.querySelector("select").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
  });
  const filters = document.getElementById("filters");
  filters.hidden = false;
  filters.addEventListener("submit", (event) => event.preventDefault());
  const narrow = () => {
    const words = filters.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [...filters.querySelectorAll("select")].filter((s) => s.value).map((s) => [s.dataset.filter, s.value]);
    let count = 0;
    for (const row of document.querySelectorAll("#verdicts tbody tr")) {
      const section = document.getElementById(row.dataset.study);
      const said = [row, section.querySelector("h2"), ...section.querySelectorAll("p, h3, li")];
      const text = words.length ? said.map((e) => e.textContent).join(" ").toLowerCase() : "";
      row.hidden = section.hidden = !(words.every((w) => text.includes(w)) && wanted.every(([name, value]) => row.dataset[name] === value));
      count += row.hidden ? 0 : 1;
    }
    document.getElementById("found").textContent = words.length || wanted.length ? `${count} shown` : "";
  };
  for (const event of ["input", "change"]) filters.addEventListener(event, narrow);
})().catch((error) => console.error(error));
