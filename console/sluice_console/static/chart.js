// Series as a chart and a table. The chart is drawn by uPlot, which is loaded with the first one.
import { count, html, safe, timeText, useCell, useEffect, useMemo, useRef, useState, zone } from "./lib.js";
import { Table } from "./parts.js";

const COLOURS = ["#2f8f83", "#c0662b", "#5b6fc9", "#b0418a", "#7a8b1f", "#3b91c4", "#a8484a", "#6d6d6d"];

const LINES_MAX = COLOURS.length, ROWS_MAX = 100;

const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 4 });

function loadStyle() {
  if (document.querySelector("link[data-uplot]")) return;
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = "static/vendor/uPlot.min.css";
  link.dataset.uplot = "";
  document.head.append(link);
}

// 24-hour times in the zone of the page, with the date where the day changes.
function tickTexts(_, ticks, __, ___, step) {
  let day = "";
  return ticks.map((at) => {
    const [date, time] = timeText(new Date(at * 1000), false).split(" "), shown = step >= 86_400 ? date : time.slice(0, step < 60 ? 8 : 5);
    const first = date !== day && step < 86_400;
    day = date;
    return first ? `${shown}\n${date}` : shown;
  });
}

// `data` is [times in s, values, values, …]; `names` has one name for each line.
function Chart({ data, names, label }) {
  const utc = useCell(zone) === "utc";
  const box = useRef(null), plot = useRef(null);
  const [drawnMs, setDrawnMs] = useState(null);
  useEffect(() => {
    let ended = false;
    loadStyle();
    import("./vendor/uPlot.mjs").then(({ default: UPlot }) => {
      if (ended || !box.current) return;
      const began = performance.now();
      const ink = getComputedStyle(document.body).color;
      const axis = { stroke: ink, grid: { stroke: "rgb(128 128 128 / .25)", width: 1 }, ticks: { stroke: "rgb(128 128 128 / .4)" } };
      plot.current = new UPlot({
        width: box.current.clientWidth, height: 320, pxAlign: 0, ...(utc && { tzDate: (s) => UPlot.tzDate(new Date(s * 1000), "Etc/UTC") }),
        scales: { x: { range: (_, from, to) => (from === to ? [from - 1800, to + 1800] : [from, to]) } },
        axes: [{ ...axis, values: tickTexts }, { ...axis, size: 64, values: (_, ticks) => ticks.map((one) => compact.format(one)) }],
        series: [{ value: (_, at) => (at === null ? "–" : timeText(new Date(at * 1000), false)) }, ...names.map((name, at) => ({ label: name, stroke: COLOURS[at % COLOURS.length], width: 1.5, points: { show: data[0].length < 100 } }))],
      }, data, box.current);
      setDrawnMs(performance.now() - began);
    });
    const watch = new ResizeObserver(() => box.current && plot.current?.setSize({ width: box.current.clientWidth, height: 320 }));
    watch.observe(box.current);
    return () => { ended = true; watch.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [data, names.join("\n"), utc]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${box} data-drawn-ms=${drawnMs ?? ""}></div>`;
}

const numberText = (value) => (value === undefined || value === null || Number.isNaN(value) ? "–" : Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(6))));

// Each series is {labels, points: Map from a time in s to a number}. The largest are drawn and listed first.
export function SeriesChart({ series, label, name = "" }) {
  const found = useMemo(() => {
    const own = Object.keys(series[0]?.labels ?? {}).filter((key) => series.length > 1 && series.every((one) => one.labels[key] === series[0].labels[key]));
    const titled = series.map((one) => {
      const values = [...one.points.values()].filter((value) => Number.isFinite(value));
      const title = Object.entries(one.labels).filter(([key]) => !own.includes(key)).map(([key, value]) => `${key}=${value ?? "(missing)"}`).join(", ");
      return { points: one.points, title: title || name || "all", values, most: Math.max(...values), last: values.at(-1), average: values.reduce((sum, value) => sum + value, 0) / values.length };
    });
    titled.sort((a, b) => (b.average || 0) - (a.average || 0) || a.title.localeCompare(b.title));
    const drawn = titled.slice(0, LINES_MAX), times = [...new Set(drawn.flatMap((one) => [...one.points.keys()]))].sort((a, b) => a - b);
    return { titled, drawn, shared: own.map((key) => `${key}=${series[0].labels[key]}`).join(", "), data: [times, ...drawn.map((one) => times.map((at) => { const value = one.points.get(at); return Number.isFinite(value) ? value : null; }))] };
  }, [series]);
  const more = found.titled.length - found.drawn.length, listed = found.titled.slice(0, ROWS_MAX);
  const columns = [
    { name: "Series", wide: true, cell: (one) => safe(one.title) },
    { name: "Last", numeric: true, cell: (one) => numberText(one.last) },
    { name: "Average", numeric: true, cell: (one) => numberText(one.values.length ? one.average : null) },
    { name: "Largest", numeric: true, cell: (one) => numberText(one.values.length ? one.most : null) },
    { name: "Points", numeric: true, cell: (one) => count(one.points.size) },
  ];
  return html`<${Chart} data=${found.data} names=${found.drawn.map((one) => safe(one.title))} label=${label} />
    ${found.shared && html`<p class="quiet">All with <code>${safe(found.shared)}</code>.</p>`}
    ${more > 0 && html`<p class="quiet" role="status">The ${count(found.drawn.length)} series with the largest averages of ${count(found.titled.length)} are drawn${found.titled.length > ROWS_MAX ? `, and ${count(ROWS_MAX)} are listed` : ""}.</p>`}
    <${Table} caption="Series" columns=${columns} rows=${listed} tall=${true} />`;
}
