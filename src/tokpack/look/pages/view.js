// Draws the curves of runs with plotly, in place of the plots that the page came with. A choice in the
// form, a part that is chosen in a plot, and new steps of a run change them without a new page.
"use strict";
const grid = document.getElementById("curves");
const form = document.getElementById("choose");
const touch = matchMedia("(pointer: coarse)").matches;  // a finger scrolls, and looks at values
let asked = 0;
const css = (name) => getComputedStyle(grid).getPropertyValue(name).trim();

function trace(curve) {
  const [faint, color] = [curve.kind === "faint", css(`--s${curve.series % 10}`)];
  return {
    // Plotly takes some of HTML in a name for markup.
    x: curve.x, y: curve.y, name: curve.name.replace(/&/g, "&amp;").replace(/</g, "&lt;"), step: curve.step,
    mode: curve.x.length > 1 ? "lines" : "markers", marker: { color, size: 8 },
    opacity: faint ? 0.3 : 1, hoverinfo: faint ? "skip" : "all",
    line: { color, width: faint ? 1 : 2, dash: curve.kind === "dashed" ? "dash" : "solid" },
  };
}

function layout(curves, unigram) {
  const high = Math.max(...curves.map((one) => Math.max(...one.y)));
  const axis = { gridcolor: css("--rule"), zeroline: false, automargin: true };
  const level = { type: "line", xref: "paper", x0: 0, x1: 1, y0: unigram, y1: unigram,
    line: { color: css("--soft"), dash: "dash", width: 1 },
    label: { text: `unigram ${Number(unigram).toPrecision(4)}`, textposition: "end", yanchor: "bottom" } };
  return {
    xaxis: { ...axis, tickformat: "~s" },
    yaxis: { ...axis, fixedrange: true, exponentformat: "e", tickformat: high >= 1e4 ? "~s" : "" },
    font: { color: css("--soft"), family: "inherit" }, margin: { l: 44, r: 12, t: 8, b: 32 },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", hovermode: "x unified",
    hoverlabel: { bgcolor: css("--back"), bordercolor: css("--rule"), font: { color: css("--ink") } },
    dragmode: touch ? false : "zoom",
    showlegend: false, shapes: unigram === null ? [] : [level],
  };
}

function key(curve) {
  const [entry, colour] = [document.createElement("span"), document.createElement("i")];
  colour.className = `key s${curve.series % 10}`;
  entry.append(colour, curve.name);
  return entry;
}

function choice() {
  const pairs = [...new FormData(form)].filter(([, value]) => value !== "");
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

function zoom(event) {
  const [low, high] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
  if (low !== undefined) change(Math.max(0, Math.ceil(low)), Math.max(0, Math.floor(high)));
}

function change(from = form.elements.from.value, to = form.elements.to.value) {
  [form.elements.from.value, form.elements.to.value] = [from, to];
  history.replaceState(null, "", location.pathname + choice());
  draw();
}

async function draw() {
  const mine = (asked += 1);
  const answer = await fetch(grid.dataset.from + choice()).catch(() => null);  // the server has ended
  if (!answer?.ok) return;
  const { curves, unigram } = await answer.json();
  if (mine !== asked) return;  // for something else since
  for (const box of grid.children) {
    const found = curves[box.dataset.curve];
    let plot = box.querySelector(".plot");
    if (!plot) {
      plot = document.createElement("div");
      plot.className = "plot";
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", box.querySelector("figcaption").textContent);
      box.querySelector("svg").replaceWith(plot);
    }
    box.querySelector(".legend").replaceChildren(...found.filter((one) => one.name).map(key));
    const isNew = !plot.data;
    await Plotly.react(plot, found.map(trace), layout(found, box.dataset.curve === "loss" ? unigram : null),
      { displayModeBar: false, doubleClick: false, responsive: true });
    if (!isNew) continue;
    plot.on("plotly_relayout", zoom);
    if (!touch) plot.on("plotly_click", ({ points: [point] }) => { location.href = point.data.step + point.x; });
  }
  grid.dataset.drawn = location.search;
}

form.addEventListener("change", () => change());
form.addEventListener("submit", (event) => { event.preventDefault(); change(); });
document.getElementById("all").addEventListener("click", (event) => { event.preventDefault(); change("", ""); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
if ("live" in grid.dataset) setInterval(() => document.hidden || draw(), 30000);
draw();
