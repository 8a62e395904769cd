(function () {
  "use strict";
  var charts = Array.from(document.querySelectorAll(".chart"));
  var exchange = JSON.parse(document.getElementById("dark-colors").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var config = { displayModeBar: false, responsive: true };

  function unpacked(text) {
    var bytes = Uint8Array.from(atob(text), function (c) { return c.charCodeAt(0); });
    var stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  }

  function figure(chart, darkly) {
    var text = chart.querySelector("script").textContent;
    if (darkly) text = text.replace(/#[0-9a-f]{6}\b/g, function (color) { return exchange[color] || color; });
    return JSON.parse(text);
  }

  function draw(darkly, width) {
    charts.forEach(function (chart) {
      var found = figure(chart, darkly);
      if (width) found.layout.width = width;
      window.Plotly.react(chart.querySelector(".chart-area"), found.data, found.layout, config);
    });
  }

  unpacked(document.getElementById("plotly").textContent).then(function (code) {
    var script = document.createElement("script");
    script.textContent = code;
    document.head.appendChild(script);
    draw(dark.matches);
    dark.addEventListener("change", function () { draw(dark.matches); });
    window.addEventListener("beforeprint", function () {
      document.querySelectorAll(".fold").forEach(function (fold) { fold.open = true; });
      draw(false, 640);
    });
    window.addEventListener("afterprint", function () { draw(dark.matches); });
  }).catch(function (error) {
    charts.forEach(function (chart) {
      chart.querySelector(".chart-area").textContent =
        "This chart needs a browser of 2023 or later (" + error + "); the numbers are below.";
    });
  });
})();
