(function () {
  "use strict";
  var tip = document.getElementById("tip");
  document.addEventListener("mousemove", function (event) {
    var shown = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = !shown;
    if (!shown) return;
    tip.textContent = shown.getAttribute("data-tip");
    var x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    var above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = Math.max(8, x) + "px";
    tip.style.top = (above > 8 ? above : event.clientY + 18) + "px";
  });
  document.querySelectorAll(".choice").forEach(function (choice) {
    var panels = choice.querySelectorAll(":scope > .choice-panel");
    function show() {
      var chosen = Number(choice.querySelector(":checked").value);
      panels.forEach(function (panel, i) { panel.hidden = i !== chosen; });
    }
    choice.addEventListener("change", show);
    show();  // a browser may remember another choice
  });
})();
