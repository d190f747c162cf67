// Additions to htmx: a notice when the server is unavailable, and on the live screen a pause button and a bounded list.
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
    if (status === 503) say("A server that this page needs is unavailable. Retrying…");
    else if (status === 429) say("Too many requests. Waiting a moment.");
    else if (status === 404) leave(event.detail.target);
    else if (status !== 401) say("The server answered with an error (" + status + ").");
  });
  // deleted content must disappear from open pages
  function leave(target) {
    const gone = "This no longer exists.";
    if (target && target.id === "thread") {
      document.title = gone;
      byId("main").replaceChildren(Object.assign(document.createElement("p"), { className: "notice", textContent: gone }));
    } else say(gone);
  }
  document.addEventListener("htmx:sendError", () => say("The server cannot be reached. Retrying…"));
  document.addEventListener("htmx:sseError", () => waking || say("Live updates are interrupted. Reconnecting…"));
  document.addEventListener("htmx:sseOpen", () => {
    waking = false;
    say("");
  });

  // A browser opens at most six connections to a server, so a hidden page closes the live stream.
  let stream = null;
  let waking = false;
  htmx.createEventSource = (address) => {
    stream = new EventSource(address, { withCredentials: true });
    if (document.hidden) stream.close();
    return stream;
  };
  document.addEventListener("visibilitychange", () => {
    if (!stream) return;
    waking = !document.hidden;
    if (document.hidden) stream.close();
    else if (stream.onerror) stream.onerror(new Event("error")); // makes the extension reconnect
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) say("");
  });

  // a refresh closes nothing that the reader has opened, and moves neither what is in sight nor the focus
  let keep = null;
  const topOf = (element) => element.getBoundingClientRect().top;
  const place = (element) => element.getAttribute("href") || (element.matches("summary") ? element.parentElement.id : element.value);
  document.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    if (!target || target.id !== "thread" || !event.detail.shouldSwap) return;
    const box = target.closest(".scroller");
    const first = box.scrollTop < -1 && Array.from(box.querySelectorAll("li[id]")).find((one) => topOf(one) > topOf(box));
    keep = {
      box, first: first && first.id, top: first && topOf(first), focus: target.contains(document.activeElement) && place(document.activeElement),
      opened: Array.from(document.querySelectorAll("details[open]"), (one) => one.id),
    };
  });
  document.addEventListener("htmx:afterSwap", () => {
    const part = byId("thread");
    if (keep && part) {
      keep.opened.forEach((id) => byId(id) && (byId(id).open = true));
      const first = keep.first && byId(keep.first);
      if (first) keep.box.scrollTop += topOf(first) - keep.top;
      const again = Array.from(part.querySelectorAll("a, button, summary")).find((one) => place(one) === keep.focus);
      if (keep.focus) (again || keep.box).focus({ preventScroll: true });
      document.title = part.dataset.title;
    }
    keep = null;
  });

  // the chat: Enter sends, what could not be sent stays in the box, and what is archived is shown once
  document.addEventListener("keydown", (event) => {
    const box = event.target;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || !box.matches("#say textarea")) return;
    event.preventDefault();
    box.form.requestSubmit();
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    const form = event.detail.elt;
    if (form.id !== "say") return;
    const status = event.detail.xhr.status;
    if (status >= 200 && status < 300) form.elements.content.value = "";
    else byId("said").textContent = "This was not sent. It is still in the box below.";
    document.querySelector(".scroller").scrollTop = 0;
  });
  document.addEventListener("htmx:afterSwap", () =>
    document.querySelectorAll("#said li[id]").forEach((one) => document.querySelectorAll("#" + one.id).length > 1 && one.remove())
  );

  // a search is in the address behind the #, which can be gone back to, and which no server and no log sees
  const form = byId("search");
  function searchAgain() {
    const asked = new URLSearchParams(location.hash.slice(1));
    asked.forEach((value, name) => form.elements[name] && (form.elements[name].value = value));
    if (asked.get("query")) form.requestSubmit();
  }
  if (form) {
    form.addEventListener("submit", () => {
      const filled = Array.from(new FormData(form)).filter((field) => field[1]);
      const address = "#" + new URLSearchParams(filled);
      if (address !== location.hash) history.pushState(null, "", address);
    });
    window.addEventListener("popstate", searchAgain);
    document.addEventListener("DOMContentLoaded", searchAgain); // once htmx knows the form
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#pause");
    if (!button) return;
    const paused = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume" : "Pause";
  });
  const isPaused = () => byId("pause") && byId("pause").getAttribute("aria-pressed") === "true";
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (isPaused()) event.preventDefault();
  });
  // nothing is refreshed while the page is hidden, nor the list of latest messages while somebody uses it
  document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.detail.elt;
    const isUsed = part.id === "recent" && part.querySelector(".cards") && (isPaused() || part.contains(document.activeElement));
    if (isUsed || (document.hidden && part.matches("[hx-trigger*='every']"))) event.preventDefault();
  });
  document.addEventListener("htmx:sseMessage", () => {
    const list = byId("entries");
    if (!list) return;
    const seen = new Set(); // only the last summary or deletion of each episode is shown
    list.querySelectorAll("[data-episode]").forEach((one) => {
      if (seen.has(one.dataset.episode)) one.remove();
      seen.add(one.dataset.episode);
    });
    const placeholder = list.querySelector(".placeholder");
    if (placeholder && list.children.length > 1) placeholder.remove();
    while (list.children.length > MOST_ENTRIES) list.lastElementChild.remove();
  });
})();
