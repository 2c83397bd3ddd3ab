"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;

  // Plotly reads text as a little HTML (bold, links, line breaks): names from a trace must not become that.
  const verbatim = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

  const time = (ms) => {
    const size = Math.abs(ms);
    if (size >= 1000) return (ms / 1000).toPrecision(4) + " s";
    if (size >= 1) return ms.toPrecision(4) + " ms";
    return size >= 0.001 ? (ms * 1000).toPrecision(4) + " µs" : Math.round(ms * 1e6) + " ns";
  };

  // ---- Charts ----
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const axis = () => ({
    gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false, tickfont: { color: colour("--soft"), size: 11 },
    title: { font: { color: colour("--soft"), size: 11 } },
  });

  const layout = (more) => ({
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { family: "system-ui, sans-serif", color: colour("--ink"), size: 12 },
    modebar: { bgcolor: "transparent", color: colour("--soft"), activecolor: colour("--accent") }, hovermode: "closest", dragmode: "zoom",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { family: "system-ui, sans-serif", color: colour("--ink"), size: 12 }, align: "left" },
    ...more,
  });

  // The buttons are named one by one: Plotly's own set has one that sends the data to a server.
  const config = { displaylogo: false, responsive: true, showTips: false, plotlyServerURL: "", modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };

  const timeAxis = (more) => ({ ...axis(), title: { text: "time since the first event", font: { color: colour("--soft"), size: 11 } }, ...more });

  // One scale for a chart, so that ticks are short numbers with one unit.
  const scale = data.span >= 2000 ? [0.001, "s"] : data.span >= 1 ? [1, "ms"] : [1000, "µs"];
  const scaled = (values) => values.map((value) => value * scale[0]);

  const laneColour = (lane) => (lane.lane === "fallbacks" ? colour("--fell") : lane.colour);

  const hovered = (lane) =>
    lane.x.map((start, i) => {
      const name = verbatim(cut(lane.names[lane.name[i]], 80));
      const head = `<b>${verbatim(lane.device)}</b> ${lane.lane}, +${time(start)}`;
      if (!lane.busy) return `${head}<br>${name}` + (lane.lane === "allocs" ? "" : `<br>${time(lane.width[i])}`);
      const busy = lane.lane === "allocs" ? "" : `, ${lane.busy[i]} % busy`;
      return `${head}<br>${lane.count[i].toLocaleString("en")} in ${time(lane.width)}${busy}<br>mostly ${name}`;
    });

  // Bars from begin to end, their opacity the share of time that the lane was busy.
  const laneTrace = (lane, y) => {
    const most = Math.max(...lane.count, 1);
    const weight = (i) => (lane.busy ? (lane.lane === "allocs" ? lane.count[i] / most : lane.busy[i] / 100) : 1);
    const least = data.span / 1500;
    return {
      type: "bar", orientation: "h", y: lane.x.map(() => y), base: scaled(lane.x),
      x: scaled(lane.x.map((_, i) => (lane.busy ? lane.width : Math.max(lane.width[i], least)))),
      width: 0.72, hovertext: hovered(lane), hoverinfo: "text", textposition: "none", showlegend: false,
      marker: { color: laneColour(lane), opacity: lane.x.map((_, i) => 0.12 + 0.88 * Math.min(1, weight(i))), line: { width: 0 } },
    };
  };

  const drawTimeline = (element) => {
    const devices = [...new Set(data.lanes.map((lane) => lane.device))];
    let y = 0;
    const places = [], labels = [], traces = [], annotations = [], shapes = [];
    for (const device of devices) {
      const lanes = data.lanes.filter((lane) => lane.device === device);
      annotations.push({
        x: 0, xref: "paper", xanchor: "left", y: y - 0.15, yref: "y", showarrow: false,
        text: `<b>${verbatim(cut(device, 60))}</b>  ${verbatim(cut(lanes[0].vendor, 40))}`, font: { color: lanes[0].colour, size: 12 },
      });
      y += 1;
      for (const lane of lanes) {
        traces.push(laneTrace(lane, y));
        places.push(y);
        labels.push(lane.lane);
        shapes.push({
          type: "rect", xref: "paper", x0: 0, x1: 1, y0: y - 0.36, y1: y + 0.36, fillcolor: colour("--back"), line: { width: 0 }, layer: "below",
        });
        y += 1;
      }
      y += 0.3;
    }
    const height = 60 + y * 26;
    element.style.height = `${height}px`;
    return Plotly.react(element, traces, layout({
      height, barmode: "overlay", bargap: 0, annotations, shapes, margin: { l: 78, r: 16, t: 8, b: 42 },
      xaxis: timeAxis({ ticksuffix: ` ${scale[1]}`, range: [0, data.span * scale[0]], showgrid: true }),
      yaxis: { ...axis(), tickvals: places, ticktext: labels, range: [y - 0.2, -0.6], fixedrange: true, showgrid: false },
    }), config);
  };

  const legend = (shown) => ({ legend: { orientation: "h", y: 1.14, font: { color: colour("--ink") } }, showlegend: shown });

  const drawLines = (chart) => (element) => {
    const traces = chart.series.map((found) => ({
      type: "scatter", mode: "lines", line: { shape: "hv", width: 1.4, color: found.colour, dash: found.dash }, fill: chart.series.length < 5 ? "tozeroy" : "none", fillcolor: `${found.colour}22`,
      x: [...scaled(found.x), data.span * scale[0]], y: [...found.y, found.y[found.y.length - 1]],
      name: verbatim(found.name), hovertemplate: `%{y:,.4~g}${chart.unit} at +%{x:.4~g} ${scale[1]}<extra>%{fullData.name}</extra>`,
    }));
    const peaks = chart.series.length > 4 ? [] : chart.series.map((found) => {
      const at = found.y.reduce((best, value, i) => (value > found.y[best] ? i : best), 0);
      return {
        x: found.x[at] * scale[0], y: found.y[at], text: `peak ${Number((found.y[at] ?? 0).toPrecision(3))}${chart.unit}`, showarrow: true, arrowhead: 0,
        ax: 0, ay: -18, xanchor: found.x[at] > data.span * 0.9 ? "right" : found.x[at] < data.span * 0.1 ? "left" : "center", font: { color: found.colour, size: 11 }, arrowcolor: found.colour, bgcolor: colour("--card"), borderpad: 1,
      };
    });
    const across = Math.max(1, Math.floor(element.clientWidth / 190)), legendLines = Math.ceil(chart.series.length / across);
    return Plotly.react(element, traces, layout({
      // The legend stands above the plot: it takes a line of its own for every few names.
      height: 270 + 30 * legendLines, annotations: peaks, margin: { l: 70, r: 16, t: 30 * legendLines, b: 42 }, ...legend(true),
      xaxis: timeAxis({ ticksuffix: ` ${scale[1]}`, range: [0, data.span * scale[0]] }),
      yaxis: { ...axis(), ticksuffix: chart.unit, rangemode: "tozero" },
    }), config);
  };

  const drawBars = (chart) => (element) => {
    const labels = chart.labels.map((label) => verbatim(cut(label, 48)));
    const traces = chart.parts.map((part) => ({
      type: "bar", orientation: "h", y: labels.map((_, i) => i), x: part.x, name: verbatim(part.name || "all"), marker: { color: part.colour, line: { width: 0 } },
      hovertext: part.x.map((value, i) => `<b>${verbatim(part.name)}</b><br>${verbatim(cut(chart.labels[i], 120))}<br>${Number(value.toPrecision(4))}${chart.unit}`), hoverinfo: "text", textposition: "none",
    }));
    return Plotly.react(element, traces, layout({
      height: 70 + 24 * labels.length, barmode: "stack", bargap: 0.25, margin: { l: 300, r: 16, t: 24, b: 36 }, ...legend(traces.length > 1),
      xaxis: { ...axis(), ticksuffix: chart.unit, rangemode: "tozero" },
      yaxis: { ...axis(), tickvals: labels.map((_, i) => i), ticktext: labels, autorange: "reversed", showgrid: false },
    }), config);
  };

  const drawHeat = (chart) => (element) => {
    const rows = chart.rows.map((name) => verbatim(cut(name, 40))), columns = chart.columns.map((name) => verbatim(cut(name, 30)));
    const text = chart.values.map((line, r) => line.map((value, c) => value === null ? "" :
      `${verbatim(cut(chart.rows[r], 120))}<br>${verbatim(cut(chart.columns[c], 120))}<br>${Number(value.toPrecision(4))}${chart.unit}`));
    return Plotly.react(element, [{
      type: "heatmap", z: chart.values, x: columns.map((_, i) => i), y: rows.map((_, i) => i), hovertext: text, hoverinfo: "text", xgap: 2, ygap: 2,
      colorscale: [[0, colour("--heat")], [1, colour("--fell")]], colorbar: { ticksuffix: chart.unit, thickness: 10, tickfont: { color: colour("--soft"), size: 11 }, outlinewidth: 0 },
    }], layout({
      height: 110 + 24 * rows.length, margin: { l: 280, r: 16, t: 12, b: 90 },
      xaxis: { ...axis(), tickvals: columns.map((_, i) => i), ticktext: columns, showgrid: false },
      yaxis: { ...axis(), tickvals: rows.map((_, i) => i), ticktext: rows, autorange: "reversed", showgrid: false },
    }), config);
  };

  const drawSteps = (element) => {
    const palette = ["#4f7cff", "#14b8a6", "#a855f7", "#ec4899", "#84cc16", "#64748b"];
    const traces = data.steps.map((found, number) => ({
      type: "bar", x: found.x, y: found.y, name: found.who, marker: { color: palette[number % palette.length], line: { width: 0 } },
      hovertext: found.x.map((step, i) => `step ${step}, ${found.who}<br>${found.y[i] === null ? "end not seen" : time(found.y[i])}<br>` +
        `${found.launches[i].toLocaleString("en")} launches, ${found.fallbacks[i].toLocaleString("en")} fallbacks`), hoverinfo: "text", textposition: "none",
    }));
    return Plotly.react(element, traces, layout({
      height: 240, margin: { l: 70, r: 16, t: 12, b: 42 }, showlegend: data.steps.length > 1, bargap: 0.15,
      legend: { orientation: "h", y: 1.14, font: { color: colour("--ink") } },
      xaxis: { ...axis(), title: { text: "step", font: { color: colour("--soft"), size: 11 } }, showgrid: false },
      yaxis: { ...axis(), ticksuffix: " ms", rangemode: "tozero" },
    }), config);
  };

  const KINDS = { lines: drawLines, bars: drawBars, heat: drawHeat };
  const CHARTS = { "chart-timeline": data.lanes.length && drawTimeline, "chart-steps": data.steps.length && drawSteps };
  for (const [id, chart] of Object.entries(data.charts)) CHARTS[id] = KINDS[chart.kind](chart);

  // A chart in a closed <details> has no width yet: it is drawn when that opens.
  const drawIn = (part) => Promise.all([...part.querySelectorAll(".chart")].map((element) => {
    element.hidden = !CHARTS[element.id];
    return CHARTS[element.id] && !element.closest("details:not([open])") ? CHARTS[element.id](element) : null;
  }));
  const draw = () => drawIn(document);
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", () => drawIn(details));

  // ---- Theme ----
  const setTheme = (theme) => {
    root.dataset.theme = theme;
    return draw();
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

  // Paper is light and has nothing to click.
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, closed: [...document.querySelectorAll("details:not([open])")] };
    before.closed.forEach((details) => { details.open = true; });
    setTheme("light");
  });
  window.addEventListener("afterprint", () => {
    before.closed.forEach((details) => { details.open = false; });
    setTheme(before.theme);
  });

  // ---- Tables ----
  const wordsOf = (input) => input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const everywhere = document.getElementById("search");
  const filters = [];
  everywhere.addEventListener("input", () => {
    filters.forEach((filter) => filter());
    const searched = wordsOf(everywhere).length > 0;
    for (const question of document.querySelectorAll(".question")) {
      const found = question.querySelector("tbody tr:not([hidden])") !== null;
      question.hidden = searched && !found;
      if (question.tagName === "DETAILS" && searched && found) question.open = true;
    }
  });
  for (const table of document.querySelectorAll(".table")) {
    const body = table.querySelector("tbody");
    const rows = [...body.rows];
    const own = table.querySelector("input");
    const filter = () => {
      const words = [...wordsOf(everywhere), ...(own ? wordsOf(own) : [])];
      for (const row of rows) {
        const text = words.length ? row.textContent.toLowerCase() : "";
        row.hidden = !words.every((word) => text.includes(word));
      }
    };
    filters.push(filter);
    own?.addEventListener("input", filter);
    const heads = [...table.querySelectorAll("th")];
    const value = (row, place, numbers) =>
      numbers ? Number(row.cells[place].dataset.n ?? -Infinity) : row.cells[place].textContent.trim();
    const sort = (head, place) => {
      const numbers = head.classList.contains("n");
      const down = head.getAttribute("aria-sort") !== "descending" && (numbers || head.getAttribute("aria-sort") === "ascending");
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const order = (a, b) => (a < b ? -sign : a > b ? sign : 0);
      rows.sort((a, b) => order(value(a, place, numbers), value(b, place, numbers)));
      body.append(...rows);
    };
    heads.forEach((head, place) => {
      head.addEventListener("click", () => sort(head, place));
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort(head, place));
    });
  }

  setTheme(dark.matches ? "dark" : "light").then(() => { root.dataset.ready = "yes"; });
})();
