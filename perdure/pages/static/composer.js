// Enter sends a message, Shift+Enter begins a new line; Enter that ends the input of a composed character (IME) does neither.
"use strict";
document.addEventListener("keydown", (event) => {
  const field = event.target;
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  if (!(field instanceof HTMLTextAreaElement) || field.getAttribute("enterkeyhint") !== "send") return;
  event.preventDefault();
  const files = field.form.querySelector("input[type=file]");
  if (field.value.trim() || files?.files.length) field.form.requestSubmit(field.form.querySelector("button.approve"));
});
