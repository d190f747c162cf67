// Small things around htmx: the notice when the server is away, the pause of Live, and a bounded list there.
(function () {
  "use strict";
  const MOST_ENTRIES = 120;
  const byId = (id) => document.getElementById(id);

  function say(text) {
    const banner = byId("connection");
    if (banner) {
      banner.textContent = text;
      banner.hidden = !text;
    }
  }

  document.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    if (status === 503) say("A server that this page needs is away. It tries again by itself.");
    else if (status === 429) say("Too many requests. This page waits a little.");
    else if (status === 404) say("This is not here any more.");
    else if (status !== 401) say("The server answered with an error (" + status + ").");
  });
  document.addEventListener("htmx:sendError", () => say("The server cannot be reached. This page tries again by itself."));
  document.addEventListener("htmx:sseError", () => say("Live updates are interrupted. This page tries again by itself."));
  document.addEventListener("htmx:sseOpen", () => say(""));
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) say("");
  });

  // a part that is renewed by itself must not close what a reader has opened, nor take the focus away
  document.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    if (target && target.id === "thread" && event.detail.shouldSwap) {
      keep = { opened: opened(target), focus: place(target, document.activeElement) };
    }
  });
  let keep = null;
  const opened = (part) => Array.from(part.querySelectorAll("details"), (one) => one.open);
  const place = (part, element) =>
    part.contains(element) ? Array.from(part.querySelectorAll("a, button, summary")).indexOf(element) : -1;

  document.addEventListener("htmx:afterSwap", () => {
    const part = byId("thread");
    if (keep && part) {
      part.querySelectorAll("details").forEach((one, at) => (one.open = keep.opened[at] || false));
      if (keep.focus >= 0) {
        const again = part.querySelectorAll("a, button, summary")[keep.focus];
        if (again) again.focus();
      }
    }
    keep = null;
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#pause");
    if (!button) return;
    const paused = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on" : "Pause";
  });
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const button = byId("pause");
    if (button && button.getAttribute("aria-pressed") === "true") event.preventDefault();
  });
  document.addEventListener("htmx:sseMessage", () => {
    const list = byId("entries");
    if (!list) return;
    const placeholder = list.querySelector(".placeholder");
    if (placeholder && list.children.length > 1) placeholder.remove();
    while (list.children.length > MOST_ENTRIES) list.lastElementChild.remove();
  });
})();
