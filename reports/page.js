// Copy buttons, names for what scrolls, and everything unfolded on paper. The page is complete without this.
"use strict";

const said = document.getElementById("said");

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
  for (const box of document.querySelectorAll(".wide")) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", box.dataset.label]]) {
      if (scrolls) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }
}
nameScrollers();
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
