// In all pages: a click on the head of a column sorts the table, and a field above a long one filters its rows.
// Both last until the tab is closed, also where the page reloads itself.
"use strict";
{
  const LONG = 12;  // rows
  const UNITS = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, min: 60, h: 3600 };

  function amount(text) {  // of 1,234, >99.9%, 5.6 kB, 1 h 02 min; NaN for other text
    const time = text.match(/^(\d+) (h|min) (\d+)/);
    if (time) return UNITS[time[2]] * (Number(time[1]) + time[3] / 60);
    const found = text.match(/^[<>]?(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)(?![-\w./:]) ?([kMGT]?)(?![a-z])|^[<>]?(-?[\d.]+)([kMGT])\b/);
    return found ? (found[1] ?? found[3]).replaceAll(",", "") * (UNITS[found[2] || found[4]] ?? 1) : NaN;
  }

  function sort(head, wanted) {  // falling if wanted; a click turns the order around
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [row.cells[head.cellIndex].textContent.trim(), row]);
    const isNumeric = rows.every(([text]) => !text || !Number.isNaN(amount(text)));
    const order = isNumeric ? (a, b) => amount(a) - amount(b) : (a, b) => a.localeCompare(b, undefined, { numeric: true });
    const before = head.ariaSort;
    const isFalling = wanted ?? (before ? before === "ascending" : isNumeric);  // the largest number is looked for first
    for (const other of head.parentNode.cells) other.ariaSort = null;
    head.ariaSort = isFalling ? "descending" : "ascending";
    rows.sort(([a], [b]) => (a && b ? (isFalling ? order(b, a) : order(a, b)) : !a - !b));  // empty cells last
    body.append(...rows.map(([, row]) => row));
  }

  let kept = {};
  try { kept = sessionStorage; } catch { /* refused to pages whose cookies are */ }

  for (const [number, table] of document.querySelectorAll("table:not(.facts)").entries()) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 2) continue;
    const heads = [...table.tHead.rows[0].cells];
    const name = [location.pathname, location.search, number, ...heads.map((head) => head.textContent)].join("\n");
    const { column, isFalling, wanted } = JSON.parse(kept[name] ?? "{}");
    const field = Object.assign(document.createElement("input"), { type: "search", placeholder: "filter these rows", className: "filter" });
    const keep = () => {
      const sorted = heads.findIndex((head) => head.ariaSort);
      kept[name] = JSON.stringify({ column: sorted, isFalling: heads[sorted]?.ariaSort === "descending", wanted: field.value });
    };
    const filter = () => {
      const wanted = field.value.toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    };
    for (const head of heads) {
      const click = () => { sort(head); keep(); };
      head.tabIndex = 0;
      head.addEventListener("click", click);
      head.addEventListener("keydown", (event) => event.key === "Enter" && click());
    }
    if (heads[column]) sort(heads[column], isFalling);
    if (rows.length < LONG) continue;
    field.value = wanted ?? "";
    field.addEventListener("input", () => { filter(); keep(); });
    table.parentNode.before(field);
    filter();
  }
}
