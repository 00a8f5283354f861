// Keep a page's figures fresh: an event tells that something happened, and the page's live parts are fetched anew.
// The server makes all of it; without this file the page shows what was so when it was loaded.

const status = document.getElementById("live");
const QUIET_MS = 2000; // between two looks, however many events come,
const SHARE = 20; // and at least so many times what the last one took: many open pages must not busy the server
const SLOW_MS = 60000; // and without any: rates and times go on
let pending = 0;
let lastAt = 0;
let tookMs = 0;
let isBusy = false;

function say(state, text) {
  if (status.dataset.state === state && status.textContent === text) return;
  status.dataset.state = state;
  status.textContent = text;
}

function soon() {
  if (pending) return;
  const wait = Math.max(100, Math.max(QUIET_MS, SHARE * tookMs) - (Date.now() - lastAt));
  pending = setTimeout(refresh, wait);
}

async function refresh() {
  pending = 0;
  if (document.hidden) return;
  if (isBusy) return soon();
  isBusy = true;
  lastAt = Date.now();
  try {
    const answer = await fetch(location.href, { credentials: "same-origin", headers: { Accept: "text/html" } });
    if (answer.redirected && new URL(answer.url).pathname === "/login") {
      location.assign(answer.url);
      return;
    }
    if (!answer.ok) return;
    const text = await answer.text();
    tookMs = Date.now() - lastAt;
    swap(new DOMParser().parseFromString(text, "text/html"));
  } catch {
    // The stream's own state tells when the server is away.
  } finally {
    isBusy = false;
  }
}

function swap(fresh) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    if (!next) continue;
    // What somebody has opened stays open, where they have scrolled to stays, and so does what has the focus.
    const open = [...old.querySelectorAll("details[open]")].map((one) => one.id);
    for (const id of open) next.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
    if (next.innerHTML === old.innerHTML) continue;
    const places = [...old.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
    const focusable = "a, button, summary, input, [tabindex]";
    const at = [...old.querySelectorAll(focusable)].indexOf(document.activeElement);
    old.replaceChildren(...next.childNodes);
    [...old.querySelectorAll(".scroll")].forEach((one, n) => {
      if (places[n]) [one.scrollLeft, one.scrollTop] = places[n];
    });
    if (at >= 0) old.querySelectorAll(focusable)[at]?.focus({ preventScroll: true });
  }
}

const live = document.querySelector("[data-live]");
if (live) {
  const stream = new EventSource("/events");
  const types = ["created", "running", "progress", "completed", "failed", "expired", "cancelled"];
  for (const kind of types) {
    stream.addEventListener(`job.${kind}`, soon);
    stream.addEventListener(`batch.${kind}`, soon);
  }
  stream.onopen = () => say("live", "Live");
  stream.onerror = () => say("lost", "Not live: trying again");
  setInterval(soon, SLOW_MS);
  document.addEventListener("visibilitychange", () => document.hidden || soon());
}
