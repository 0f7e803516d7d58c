"use strict";
const SHOWN = 10;
const find = (id) => document.getElementById(id);

function row(name, probability) {
  const line = find("classes").insertRow();
  line.insertCell().textContent = name;
  line.insertCell().textContent = (100 * probability).toFixed(1) + " %";
  const bar = document.createElement("span");
  bar.className = "bar";
  bar.style.width = 100 * probability + "%";
  line.insertCell().append(bar);
}

async function predict(file) {
  find("problem").textContent = "";
  find("class").textContent = "…";
  find("classes").replaceChildren();
  URL.revokeObjectURL(find("picture").src);
  find("picture").src = URL.createObjectURL(file);
  find("shown").hidden = false;
  let answer;
  try {
    const headers = { "Content-Type": "application/octet-stream" };
    answer = await (await fetch("predict", { method: "POST", body: file, headers })).json();
  } catch {
    answer = { error: "the server does not answer" };
  }
  if (answer.error) {
    find("shown").hidden = true;
    find("problem").textContent = answer.error;
    return;
  }
  find("class").textContent = answer.class;
  const classes = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  classes.slice(0, SHOWN).forEach(([name, probability]) => row(name, probability));
}

find("file").addEventListener("change", (event) => event.target.files[0] && predict(event.target.files[0]));
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    find("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
  });
}
document.addEventListener("drop", (event) => event.dataTransfer.files[0] && predict(event.dataTransfer.files[0]));
document.addEventListener("paste", (event) => event.clipboardData.files[0] && predict(event.clipboardData.files[0]));
