"use strict";
// Everything is readable without scripts; they add sorting, filtering, folding and copying.
document.documentElement.classList.add("scripted");

for (const box of document.querySelectorAll(".command")) {
  const button = box.querySelector(".copy");
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

