// Views by hash, colours, copy buttons, names for what scrolls. Without this the page shows everything, one after another.
"use strict";

const said = document.getElementById("said");
const views = [...document.querySelectorAll(".view")];
const title = document.title;

// Views: the overview, the cases, and a page for each subject. The hash names a heading; the view that holds it is shown.
const whenShown = new Map(); // a view's element -> what to do when it is shown

function headingOf(hash) {
  let name = hash.slice(1);
  try {
    name = decodeURIComponent(name);
  } catch {
    return null; // not ours
  }
  return name ? document.getElementById(name) : null;
}

function show(heading, focus) {
  const view = heading?.closest(".view") ?? views[0];
  for (const other of views) other.classList.toggle("off", other !== view);
  for (const link of document.querySelectorAll("nav a")) {
    const here = heading !== null && link.hash === `#${heading.id}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const subject = view.matches("article") ? view.querySelector("h2").textContent.trim().replace(/\s+/g, " ") : "";
  document.title = subject ? `${subject} - ${title}` : title;
  whenShown.get(view)?.();
  nameScrollers();
  if (!focus) return;
  if (heading) {
    heading.focus({ preventScroll: true });
    heading.scrollIntoView();
  } else {
    window.scrollTo(0, 0);
  }
}

function route(focus) {
  // The skip link's target is no view of its own: whatever is shown stays.
  if (location.hash === "#main") return;
  show(headingOf(location.hash), focus);
}
window.addEventListener("hashchange", () => route(true));

// A link to what is in the address already changes no hash, and is to bring one there all the same.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#"]');
  if (link && link.hash === location.hash) route(true);
});

// Colours: as the system says, unless a reader chose otherwise.
const themes = document.getElementById("themes");
function remembered() {
  try {
    return localStorage.getItem("eagleeye-theme") ?? "";
  } catch {
    return ""; // a browser may refuse to store anything for a file
  }
}
function paint(theme) {
  document.documentElement.style.colorScheme = theme || "light dark";
  document.documentElement.dataset.theme = theme;
}
themes.hidden = false;
themes.addEventListener("change", (event) => {
  paint(event.target.value);
  try {
    localStorage.setItem("eagleeye-theme", event.target.value);
  } catch {
    // It then lasts as long as the page.
  }
});
const before = themes.querySelector(`input[value="${CSS.escape(remembered())}"]`);
if (before) {
  before.checked = true;
  paint(before.value);
}

function selectText(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  let done = true;
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    // Without permission for the clipboard, the older way works on a selection; failing that, the selection stays.
    selectText(source);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Selected";
  said.textContent = done ? "Copied to the clipboard" : "Selected; press Control C to copy";
  setTimeout(() => {
    button.textContent = "Copy";
    said.textContent = "";
  }, 2000);
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}

// What scrolls sideways must be reachable by keyboard and have a name; what does not would only be in the way.
function nameScrollers() {
  for (const box of document.querySelectorAll(".view:not(.off) .wide")) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", box.dataset.label]]) {
      if (scrolls) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }
}
window.addEventListener("resize", nameScrollers);
document.addEventListener("toggle", nameScrollers, true);

let unfolded = [];
window.addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const details of unfolded) details.open = true;
});
window.addEventListener("afterprint", () => {
  for (const details of unfolded) details.open = false;
});

route(false);
