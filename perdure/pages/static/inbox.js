// Live updates: the list is replaced; the form, in which somebody may be typing, is left alone.
"use strict";
const list = document.getElementById("list");
const article = document.querySelector("article");
const title = document.title.replace(/^\(\d+\) /, "");
let submitted = false; // a form is on its way: loading the page anew now could cancel it

async function refresh() {
  const query = new URLSearchParams(location.search);
  if (article) {
    query.set("run", article.dataset.run);
    query.set("call", article.dataset.call);
  }
  const answer = await fetch("list?" + query);
  if (!answer.ok || submitted) return;
  const focused = document.activeElement && list.contains(document.activeElement) ? document.activeElement.href : null;
  list.innerHTML = await answer.text();
  if (focused) [...list.querySelectorAll("a")].find((link) => link.href === focused)?.focus();
  const count = list.querySelectorAll("li").length;
  document.title = (count ? `(${count}) ` : "") + title;
  if (article && list.querySelector("[data-gone]")) {
    document.getElementById("elsewhere").hidden = false;
    article.querySelectorAll("button").forEach((button) => { button.disabled = true; });
  } else if (!article && count && !submitted) {
    const shown = new URLSearchParams(location.search); // what was decided before is read beside the next question
    ["run", "call", "page"].forEach((name) => shown.delete(name));
    location.assign("./?" + shown);
  }
}

const events = new EventSource("events");
events.addEventListener("changed", refresh);
events.addEventListener("open", refresh);
addEventListener("submit", () => { submitted = true; });
addEventListener("pageshow", () => { submitted = false; }); // also when the reader comes back to it
