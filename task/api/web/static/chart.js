// Plotly charts in the page's own colours; the library is loaded with the first chart.
import { csvCell, h, save } from "./dom.js";
import { t } from "./i18n.js";

const LIBRARY = "static/plotly.min.js";
const VALUES = ["x", "y", "z", "labels", "values", "lat", "lon", "locations", "text", "open", "high", "low", "close"];
let loading = null;

function plotly() {
  loading ??= new Promise((done, failed) => {
    const script = h("script", { src: LIBRARY });
    script.addEventListener("load", () => done(window.Plotly));
    script.addEventListener("error", () => {
      loading = null;
      failed(new Error(t("The chart library could not be loaded.")));
    });
    document.head.append(script);
  });
  return loading;
}

/** Draw the figure (`{data, layout}`) into the element; resolves with the buttons that save it. */
export async function drawChart(place, figure, title) {
  const library = await plotly();
  const known = (figure.data ?? []).filter((trace) => library.PlotSchema.get().traces[trace.type ?? "scatter"]);
  if (known.length === 0) throw new Error(t("This kind of chart cannot be drawn here; download its data instead."));
  const draw = () => library.react(place, known, coloured(figure.layout ?? {}), {
    responsive: true, displaylogo: false, displayModeBar: false,
  });
  await draw();
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", title || t("Chart"));
  const watch = new MutationObserver(() => { if (place.isConnected) draw(); else watch.disconnect(); });
  watch.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return saving(library, place, known, figure.layout ?? {}, title || t("Chart"));
}

function saving(library, place, data, layout, title) {
  const pictured = async (format) => {
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--raised").trim();
    const { clientWidth: width, clientHeight: height } = place;
    const shown = { data, layout: { ...coloured(layout), paper_bgcolor: paper, width, height } };
    const text = await library.toImage(shown, { format, width, height, scale: 2, imageDataOnly: true });
    return format === "svg" ? new Blob([text], { type: "image/svg+xml" }) : new Blob([Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0))], { type: "image/png" });
  };
  const makers = { PNG: () => pictured("png"), SVG: () => pictured("svg"), CSV: () => new Blob([table(place._fullData)], { type: "text/csv" }) };
  return h("span", { class: "chart-saving" }, Object.entries(makers).map(([kind, make]) => h("button", {
    type: "button", class: "quiet small", "aria-label": t("Save {title} as {kind}", { title, kind }),
    onclick: async () => save(await make(), `${title}.${kind.toLowerCase()}`),
  }, kind)));
}

/** The series of the chart as columns of separated values. */
function table(series) {
  const isList = (value) => (Array.isArray(value) || ArrayBuffer.isView(value)) && typeof value[0] !== "object";
  const columns = series.flatMap((one) => VALUES.filter((key) => isList(one[key])).map((key) => [`${one.name} ${key}`, ...one[key]]));
  const rows = Array.from({ length: Math.max(0, ...columns.map((column) => column.length)) }, (_, row) => columns.map((column) => csvCell(column[row])));
  return `\ufeff${rows.map((row) => row.join(",")).join("\r\n")}\r\n`;
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
