"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return { text: of("--text"), paper: of("--paper"), line: of("--line") };
  };
  const themed = (layout) => {
    const { text, paper, line } = colours();
    const changes = {
      "font.color": text,
      "hoverlabel.bgcolor": paper,
      "hoverlabel.bordercolor": line,
      "hoverlabel.font.color": text,
    };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) {
        changes[name + ".gridcolor"] = line;
        changes[name + ".linecolor"] = line;
      }
    }
    return changes;
  };
  const charts = Object.keys(figures).map((name) => document.getElementById(name));
  const repaint = () => charts.forEach((chart) => Plotly.relayout(chart, themed(figures[chart.id].layout)));
  charts.forEach((chart) => Plotly.newPlot(chart, figures[chart.id].data, figures[chart.id].layout, options));
  repaint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  matchMedia("print").addEventListener("change", repaint);
})();
