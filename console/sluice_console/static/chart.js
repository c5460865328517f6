// Large series, drawn by uPlot, which is loaded with the first chart.
import { html, useEffect, useRef, useState } from "./lib.js";

const COLOURS = ["#2f8f83", "#c0662b", "#5b6fc9", "#b0418a", "#7a8b1f", "#3b91c4", "#a8484a", "#6d6d6d"];

const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 4 });

function loadStyle() {
  if (document.querySelector("link[data-uplot]")) return;
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = "static/vendor/uPlot.min.css";
  link.dataset.uplot = "";
  document.head.append(link);
}

// `data` is [times in s, values, values, …]; `names` has one name for each line.
export function Chart({ data, names, label, utc }) {
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
        axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map((one) => compact.format(one)) }],
        series: [{}, ...names.map((name, at) => ({ label: name, stroke: COLOURS[at % COLOURS.length], width: 1.5, points: { show: data[0].length < 100 } }))],
      }, data, box.current);
      setDrawnMs(performance.now() - began);
    });
    const watch = new ResizeObserver(() => box.current && plot.current?.setSize({ width: box.current.clientWidth, height: 320 }));
    watch.observe(box.current);
    return () => { ended = true; watch.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [data, names.join("\n"), utc]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${box} data-drawn-ms=${drawnMs ?? ""}></div>`;
}
