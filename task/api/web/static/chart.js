// Plotly charts in the page's own colours; the library is loaded with the first chart.
import { h } from "./dom.js";

const LIBRARY = "static/plotly.min.js";
let loading = null;

function plotly() {
  loading ??= new Promise((done, failed) => {
    const script = h("script", { src: LIBRARY });
    script.addEventListener("load", () => done(window.Plotly));
    script.addEventListener("error", () => {
      loading = null;
      failed(new Error("The chart library could not be loaded."));
    });
    document.head.append(script);
  });
  return loading;
}

/** Draw the figure (`{data, layout}`) into the element. */
export async function drawChart(place, figure, title) {
  const library = await plotly();
  const known = (figure.data ?? []).filter((trace) => library.PlotSchema.get().traces[trace.type ?? "scatter"]);
  if (known.length === 0) throw new Error("This kind of chart cannot be drawn here; download its data instead.");
  const draw = () => library.react(place, known, coloured(figure.layout ?? {}), {
    responsive: true, displaylogo: false, displayModeBar: false,
  });
  await draw();
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", title || "Chart");
  const watch = new MutationObserver(() => { if (place.isConnected) draw(); else watch.disconnect(); });
  watch.observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

function coloured(layout) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
  const { template: _, width: __, ...rest } = layout;
  return {
    colorway: ["#2f8f78", "#d08a3c", "#5b7fc7", "#b85c78", "#8a7cc2", "#7d8f3c"],
    margin: { l: 52, r: 16, t: layout.title ? 48 : 16, b: 44 },
    height: 360,
    ...rest,
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, ...layout.font, color: colour("--ink") },
    xaxis: { ...axis, automargin: true, ...layout.xaxis },
    yaxis: { ...axis, automargin: true, ...layout.yaxis },
    images: [],
  };
}
